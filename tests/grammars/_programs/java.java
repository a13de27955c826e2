package org.example.cache;

import java.time.Clock;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.locks.ReentrantReadWriteLock;
import java.util.function.Function;

import static java.util.stream.Collectors.toList;

/**
 * A cache whose entries grow old. Safe for many threads.
 *
 * @param <K> what is looked up
 * @param <V> what is found
 */
public final class AgingCache<K extends Comparable<K>, V> implements AutoCloseable {
    private static final int DEFAULT_SIZE = 1_024;
    private static final String NAME = "aging-cache";

    private final Map<K, Entry<V>> entries = new LinkedHashMap<>(16, 0.75f, true);
    private final ReentrantReadWriteLock lock = new ReentrantReadWriteLock();
    private final Function<? super K, ? extends V> loader;
    private final Duration maxAge;
    private final Clock clock;
    private final int maxSize;
    private volatile boolean closed;

    private AgingCache(Builder<K, V> builder) {
        this.loader = Objects.requireNonNull(builder.loader, "loader");
        this.maxAge = builder.maxAge;
        this.clock = builder.clock;
        this.maxSize = builder.maxSize > 0 ? builder.maxSize : DEFAULT_SIZE;
    }

    public static <K extends Comparable<K>, V> Builder<K, V> builder() {
        return new Builder<>();
    }

    /** The value, loaded where it is missing or too old. */
    public V get(K key) throws CacheException {
        if (closed) {
            throw new CacheException(NAME + " is closed", null);
        }
        Optional<V> known = peek(key);
        if (known.isPresent()) {
            return known.get();
        }
        V value;
        try {
            value = loader.apply(key);
        } catch (RuntimeException failure) {
            throw new CacheException("cannot load '" + key + "'", failure);
        } finally {
            evict();
        }
        lock.writeLock().lock();
        try {
            entries.put(key, new Entry<>(value, clock.instant()));
        } finally {
            lock.writeLock().unlock();
        }
        return value;
    }

    public Optional<V> peek(K key) {
        lock.readLock().lock();
        try {
            Entry<V> entry = entries.get(key);
            return entry == null || entry.olderThan(maxAge, clock.instant())
                    ? Optional.empty()
                    : Optional.of(entry.value());
        } finally {
            lock.readLock().unlock();
        }
    }

    public CompletableFuture<V> getLater(K key) {
        return CompletableFuture.supplyAsync(() -> {
            try {
                return get(key);
            } catch (CacheException failure) {
                throw new IllegalStateException(failure);
            }
        });
    }

    private void evict() {
        lock.writeLock().lock();
        try {
            Instant now = clock.instant();
            entries.values().removeIf(entry -> entry.olderThan(maxAge, now));
            List<K> keys = new ArrayList<>(entries.keySet());
            for (int i = 0; i < keys.size() - maxSize; i++) {
                entries.remove(keys.get(i));
            }
        } finally {
            lock.writeLock().unlock();
        }
    }

    public List<K> keys() {
        return entries.keySet().stream()
                .sorted(Comparator.reverseOrder())
                .filter(key -> peek(key).isPresent())
                .collect(toList());
    }

    @Override
    public void close() {
        closed = true;
        entries.clear();
    }

    @Override
    public String toString() {
        StringBuilder text = new StringBuilder(NAME).append('[');
        for (Map.Entry<K, Entry<V>> entry : entries.entrySet()) {
            text.append(entry.getKey()).append(" = ").append(entry.getValue().value()).append(", ");
        }
        switch (entries.size()) {
            case 0:
                return text.append("empty]").toString();
            default:
                text.setLength(text.length() - 2);
                return text.append(']').toString();
        }
    }

    record Entry<V>(V value, Instant loaded) {
        boolean olderThan(Duration age, Instant now) {
            return loaded.plus(age).isBefore(now);
        }
    }

    public enum Policy {
        OLDEST_FIRST("oldest"),
        LARGEST_FIRST("largest");

        private final String label;

        Policy(String label) {
            this.label = label;
        }
    }

    public static final class Builder<K extends Comparable<K>, V> {
        private Function<? super K, ? extends V> loader;
        private Duration maxAge = Duration.ofMinutes(5);
        private Clock clock = Clock.systemUTC();
        private int maxSize;

        public Builder<K, V> loader(Function<? super K, ? extends V> loader) {
            this.loader = loader;
            return this;
        }

        public AgingCache<K, V> build() {
            return new AgingCache<>(this);
        }
    }
}
