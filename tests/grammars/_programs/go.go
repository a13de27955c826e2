// Package limiter shares a budget of requests between many callers.
package limiter

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"sync"
	"time"
)

// ErrClosed is returned by everything once the limiter is closed.
var ErrClosed = errors.New("limiter: closed")

const (
	defaultRate  = 100
	defaultBurst = 2 * defaultRate
	tick         = 10 * time.Millisecond
)

type (
	// Clock tells the time; tests bring their own.
	Clock interface {
		Now() time.Time
		After(d time.Duration) <-chan time.Time
	}

	Option func(*Limiter) error
)

type realClock struct{}

func (realClock) Now() time.Time                         { return time.Now() }
func (realClock) After(d time.Duration) <-chan time.Time { return time.After(d) }

// Bucket is what one caller may still use.
type Bucket struct {
	Name    string    `json:"name"`
	Tokens  float64   `json:"tokens"`
	Updated time.Time `json:"updated,omitempty"`
	weight  int
}

// Limiter gives each caller its share.
type Limiter struct {
	mu      sync.Mutex
	clock   Clock
	rate    float64
	burst   float64
	buckets map[string]*Bucket
	closed  chan struct{}
}

// New makes a limiter with the given options.
func New(options ...Option) (*Limiter, error) {
	l := &Limiter{
		clock:   realClock{},
		rate:    defaultRate,
		burst:   defaultBurst,
		buckets: make(map[string]*Bucket),
		closed:  make(chan struct{}),
	}
	for i, option := range options {
		if err := option(l); err != nil {
			return nil, fmt.Errorf("limiter: option %d: %w", i, err)
		}
	}
	return l, nil
}

// WithRate sets how many tokens a second are handed out.
func WithRate(rate, burst float64) Option {
	return func(l *Limiter) error {
		if rate <= 0 || burst < rate {
			return fmt.Errorf("rate %v and burst %v do not fit", rate, burst)
		}
		l.rate, l.burst = rate, burst
		return nil
	}
}

func (l *Limiter) bucket(name string) *Bucket {
	found, ok := l.buckets[name]
	if !ok {
		found = &Bucket{Name: name, Tokens: l.burst, Updated: l.clock.Now(), weight: 1}
		l.buckets[name] = found
	}
	return found
}

func (b *Bucket) fill(now time.Time, rate, burst float64) {
	passed := now.Sub(b.Updated).Seconds()
	b.Tokens = min(burst, b.Tokens+passed*rate*float64(b.weight))
	b.Updated = now
}

// Allow says at once whether n tokens are there, and takes them.
func (l *Limiter) Allow(name string, n float64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	bucket := l.bucket(name)
	bucket.fill(l.clock.Now(), l.rate, l.burst)
	if bucket.Tokens < n {
		return false
	}
	bucket.Tokens -= n
	return true
}

// Wait blocks until n tokens are there or the context ends.
func (l *Limiter) Wait(ctx context.Context, name string, n float64) error {
	for attempt := 0; ; attempt++ {
		if l.Allow(name, n) {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-l.closed:
			return ErrClosed
		case <-l.clock.After(tick << min(attempt, 6)):
		}
	}
}

// Snapshot lists the buckets by name.
func (l *Limiter) Snapshot() []Bucket {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := make([]Bucket, 0, len(l.buckets))
	for _, bucket := range l.buckets {
		all = append(all, *bucket)
	}
	sort.Slice(all, func(i, j int) bool {
		return all[i].Name < all[j].Name
	})
	return all
}

// Close wakes everybody who waits.
func (l *Limiter) Close() error {
	select {
	case <-l.closed:
		return ErrClosed
	default:
		close(l.closed)
	}
	go func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		for name := range l.buckets {
			delete(l.buckets, name)
		}
	}()
	return nil
}

func (b Bucket) String() string {
	switch {
	case b.Tokens >= 1000:
		return fmt.Sprintf("%s: %.1fk", b.Name, b.Tokens/1000)
	case b.Tokens < 0:
		return b.Name + `: "overdrawn"`
	default:
		return fmt.Sprintf("%s: %.0f", b.Name, b.Tokens)
	}
}
