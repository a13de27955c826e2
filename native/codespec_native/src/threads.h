/* A pool of threads for the parts of a step. Threads wait a few microseconds for the next part, then sleep. */
#ifndef CODESPEC_THREADS_H
#define CODESPEC_THREADS_H

typedef struct pool pool_t;
typedef void (*work_t)(void *context, int unit, int thread);

pool_t *pool_new(int threads);
void pool_free(pool_t *pool);
int pool_threads(const pool_t *pool);

/* Run work(context, u, thread) for 0 <= u < units, each once, and return when all are done. The caller takes part, as
   thread 0. Units are taken one by one, so a thread that the system has put aside holds up at most one. */
void pool_run(pool_t *pool, work_t work, void *context, int units);

#endif
