/* A queue of jobs that a fixed number of threads work off. */
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define QUEUE_SIZE 64
#define NAME_LENGTH 32
#define CHECK(call)                                                        \
    do {                                                                   \
        int status_ = (call);                                              \
        if (status_ != 0) {                                                \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, strerror(status_)); \
            abort();                                                       \
        }                                                                  \
    } while (0)
#define MIN(a, b) ((a) < (b) ? (a) : (b))

#ifdef QUEUE_DEBUG
#define DEBUG(...) fprintf(stderr, __VA_ARGS__)
#else
#define DEBUG(...) ((void)0)
#endif

typedef void (*job_function)(void *argument, size_t length);

typedef enum job_state {
    JOB_WAITING = 0,
    JOB_RUNNING,
    JOB_DONE,
    JOB_FAILED = -1,
} job_state;

struct job {
    char name[NAME_LENGTH];
    job_function run;
    void *argument;
    size_t length;
    job_state state;
    struct job *next;
};

struct queue {
    struct job *first, *last;
    unsigned int count;
    bool closed;
    pthread_mutex_t lock;
    pthread_cond_t changed;
};

static const char *const state_names[] = {
    [JOB_WAITING] = "waiting",
    [JOB_RUNNING] = "running",
    [JOB_DONE] = "done",
};

/** The name of a state, for messages. */
static const char *state_name(job_state state) {
    if (state == JOB_FAILED) {
        return "failed";
    }
    return state_names[state];
}

int queue_init(struct queue *queue) {
    memset(queue, 0, sizeof(*queue));
    int status = pthread_mutex_init(&queue->lock, NULL);
    if (status != 0)
        return status;
    return pthread_cond_init(&queue->changed, NULL);
}

/** Adds a job at the end. Returns false where the queue is full or closed. */
bool queue_push(struct queue *queue, const char *name, job_function run, void *argument, size_t length) {
    struct job *job = calloc(1, sizeof(struct job));
    if (job == NULL) {
        errno = ENOMEM;
        return false;
    }
    strncpy(job->name, name, MIN(strlen(name), NAME_LENGTH - 1));
    job->run = run;
    job->argument = argument;
    job->length = length;

    CHECK(pthread_mutex_lock(&queue->lock));
    bool accepted = !queue->closed && queue->count < QUEUE_SIZE;
    if (accepted) {
        if (queue->last) {
            queue->last->next = job;
        } else {
            queue->first = job;
        }
        queue->last = job;
        queue->count++;
    }
    CHECK(pthread_cond_signal(&queue->changed));
    CHECK(pthread_mutex_unlock(&queue->lock));
    if (!accepted) {
        free(job);
    }
    return accepted;
}

static struct job *queue_pop(struct queue *queue) {
    struct job *job = NULL;
    CHECK(pthread_mutex_lock(&queue->lock));
    while (queue->first == NULL && !queue->closed) {
        CHECK(pthread_cond_wait(&queue->changed, &queue->lock));
    }
    if (queue->first != NULL) {
        job = queue->first;
        queue->first = job->next;
        queue->last = queue->first ? queue->last : NULL;
        queue->count--;
    }
    CHECK(pthread_mutex_unlock(&queue->lock));
    return job;
}

static void *work(void *shared) {
    struct queue *queue = shared;
    for (struct job *job; (job = queue_pop(queue)) != NULL; free(job)) {
        job->state = JOB_RUNNING;
        DEBUG("%s: %s\n", job->name, state_name(job->state));
        job->run(job->argument, job->length);
        switch (job->state) {
        case JOB_RUNNING:
            job->state = JOB_DONE;
            break;
        case JOB_FAILED:
            fprintf(stderr, "job \"%s\" failed\n", job->name);
            /* fall through */
        default:
            break;
        }
    }
    return NULL;
}

static void count_bytes(void *argument, size_t length) {
    const unsigned char *bytes = argument;
    unsigned int counts[256] = {0};
    for (size_t i = 0; i < length; ++i) {
        counts[bytes[i]]++;
    }
    unsigned int most = 0;
    for (int value = 1; value < 256; value++) {
        most = counts[value] > counts[most] ? (unsigned int)value : most;
    }
    printf("%c occurs %u times (0x%02x)\n", most >= ' ' ? (char)most : '?', counts[most], most);
}

int main(int argc, char **argv) {
    pthread_t threads[4];
    struct queue queue;
    CHECK(queue_init(&queue));
    for (size_t i = 0; i < sizeof(threads) / sizeof(threads[0]); i++) {
        CHECK(pthread_create(&threads[i], NULL, work, &queue));
    }
    for (int i = 1; i < argc; i++) {
        if (!queue_push(&queue, argv[i], count_bytes, argv[i], strlen(argv[i]))) {
            fprintf(stderr, "no room for '%s'\n", argv[i]);
        }
    }
    queue.closed = true;
    CHECK(pthread_cond_broadcast(&queue.changed));
    for (size_t i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
    }
    return EXIT_SUCCESS;
}
