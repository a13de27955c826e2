/* Memory at multiples of a cache line. */
#ifndef CODESPEC_ALIGNED_H
#define CODESPEC_ALIGNED_H

#include <stdlib.h>

#ifdef _WIN32
#include <malloc.h>
#define aligned_new(bytes) _aligned_malloc((bytes) ? (bytes) : 1, 64)
#define aligned_free(memory) _aligned_free(memory)
#else
#define aligned_new(bytes) aligned_alloc(64, ((bytes) + 64) / 64 * 64)
#define aligned_free(memory) free(memory)
#endif

#endif
