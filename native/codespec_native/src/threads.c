#include "threads.h"

#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>

#include "aligned.h"

#ifdef _WIN32
#include <windows.h>
typedef HANDLE thread_t;
typedef SRWLOCK lock_t;
typedef CONDITION_VARIABLE signal_t;
#define lock_init(lock) InitializeSRWLock(lock)
#define lock_take(lock) AcquireSRWLockExclusive(lock)
#define lock_leave(lock) ReleaseSRWLockExclusive(lock)
#define signal_init(signal) InitializeConditionVariable(signal)
#define signal_wait(signal, lock) SleepConditionVariableSRW(signal, lock, INFINITE, 0)
#define signal_all(signal) WakeAllConditionVariable(signal)
#define give_way() SwitchToThread()
#else
#include <pthread.h>
#include <sched.h>
typedef pthread_t thread_t;
typedef pthread_mutex_t lock_t;
typedef pthread_cond_t signal_t;
#define lock_init(lock) pthread_mutex_init(lock, NULL)
#define lock_take(lock) pthread_mutex_lock(lock)
#define lock_leave(lock) pthread_mutex_unlock(lock)
#define signal_init(signal) pthread_cond_init(signal, NULL)
#define signal_wait(signal, lock) pthread_cond_wait(signal, lock)
#define signal_all(signal) pthread_cond_broadcast(signal)
#define give_way() sched_yield()
#endif

#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#define rest() _mm_pause()
#elif defined(__aarch64__)
#define rest() __asm__ volatile("yield")
#else
#define rest() ((void)0)
#endif

enum { MAX_UNITS = (1 << 20) - 1, WAITS = 2000, PATIENCE = 4000 }; /* pauses of about 10 to 40 ns */

struct pool {
    /* The current work as one number, so that a thread takes a unit of it or fails: its number (24 bits), how many
       units it has and how many were taken (20 bits each). */
    _Alignas(64) _Atomic uint64_t ticket;
    _Alignas(64) _Atomic int done;
    _Atomic(work_t) work;
    _Atomic(void *) context;
    _Atomic int sleeping;
    _Atomic int closed;
    lock_t lock;
    signal_t wake;
    int threads;
    thread_t handles[];
};

typedef struct {
    pool_t *pool;
    int thread;
} member_t;

static int taken(uint64_t ticket) { return (int)(ticket & MAX_UNITS); }
static int units_of(uint64_t ticket) { return (int)(ticket >> 20 & MAX_UNITS); }

/* Do units until none is left. `work` and `context` are read between two looks at the same ticket: they only change
   while no unit is open, and then the ticket changes too. */
static int help(pool_t *pool, int thread) {
    int helped = 0;
    for (;;) {
        uint64_t ticket = atomic_load(&pool->ticket);
        if (taken(ticket) >= units_of(ticket)) return helped;
        work_t work = atomic_load(&pool->work);
        void *context = atomic_load(&pool->context);
        if (!atomic_compare_exchange_weak(&pool->ticket, &ticket, ticket + 1)) continue;
        work(context, taken(ticket), thread);
        atomic_fetch_add(&pool->done, 1);
        helped = 1;
    }
}

static int open_units(pool_t *pool) {
    uint64_t ticket = atomic_load(&pool->ticket);
    return taken(ticket) < units_of(ticket);
}

static void sleep_until_work(pool_t *pool) {
    lock_take(&pool->lock);
    atomic_fetch_add(&pool->sleeping, 1);
    while (!open_units(pool) && !atomic_load(&pool->closed)) signal_wait(&pool->wake, &pool->lock);
    atomic_fetch_sub(&pool->sleeping, 1);
    lock_leave(&pool->lock);
}

static void member(member_t *me) {
    pool_t *pool = me->pool;
    int thread = me->thread;
    free(me);
    while (!atomic_load(&pool->closed)) {
        int waits = 0;
        while (!open_units(pool) && waits++ < WAITS) rest();
        if (!open_units(pool)) sleep_until_work(pool);
        help(pool, thread);
    }
}

#ifdef _WIN32
static DWORD WINAPI start(void *me) { member(me); return 0; }
static int start_thread(thread_t *handle, member_t *me) {
    return (*handle = CreateThread(NULL, 0, start, me, 0, NULL)) != NULL;
}
static void join_thread(thread_t handle) { WaitForSingleObject(handle, INFINITE); CloseHandle(handle); }
#else
static void *start(void *me) { member(me); return NULL; }
static int start_thread(thread_t *handle, member_t *me) { return !pthread_create(handle, NULL, start, me); }
static void join_thread(thread_t handle) { pthread_join(handle, NULL); }
#endif

pool_t *pool_new(int threads) {
    pool_t *pool = aligned_new(sizeof(pool_t) + (size_t)threads * sizeof(thread_t));
    if (!pool) return NULL;
    atomic_init(&pool->ticket, 0);
    atomic_init(&pool->done, 0);
    atomic_init(&pool->work, NULL);
    atomic_init(&pool->context, NULL);
    atomic_init(&pool->sleeping, 0);
    atomic_init(&pool->closed, 0);
    lock_init(&pool->lock);
    signal_init(&pool->wake);
    pool->threads = 1;
    for (int thread = 1; thread < threads; thread++) {
        member_t *me = malloc(sizeof *me);
        if (!me) break;
        *me = (member_t){pool, thread};
        if (!start_thread(&pool->handles[thread], me)) {
            free(me);
            break;
        }
        pool->threads++;
    }
    return pool;
}

void pool_free(pool_t *pool) {
    if (!pool) return;
    lock_take(&pool->lock);
    atomic_store(&pool->closed, 1);
    signal_all(&pool->wake);
    lock_leave(&pool->lock);
    for (int thread = 1; thread < pool->threads; thread++) join_thread(pool->handles[thread]);
    aligned_free(pool);
}

int pool_threads(const pool_t *pool) { return pool->threads; }

void pool_run(pool_t *pool, work_t work, void *context, int units) {
    if (pool->threads == 1 || units <= 1) {
        for (int unit = 0; unit < units; unit++) work(context, unit, 0);
        return;
    }
    atomic_store(&pool->work, work);
    atomic_store(&pool->context, context);
    atomic_store(&pool->done, 0);
    uint64_t number = (atomic_load(&pool->ticket) >> 40) + 1;
    atomic_store(&pool->ticket, number << 40 | (uint64_t)units << 20);
    if (atomic_load(&pool->sleeping)) {
        lock_take(&pool->lock);
        signal_all(&pool->wake);
        lock_leave(&pool->lock);
    }
    help(pool, 0);
    for (int waits = 0; atomic_load(&pool->done) < units; waits++) {
        if (waits < PATIENCE) rest();
        else give_way(); /* the missing thread may need this processor */
    }
}
