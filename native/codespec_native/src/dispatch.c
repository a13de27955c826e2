/* Which of the compiled paths this processor runs. */
#include "kernels.h"

#include <string.h>

extern const kernels_t kernels_scalar;
#if defined(__x86_64__) || defined(_M_X64)
#include <cpuid.h>
extern const kernels_t kernels_avx2, kernels_avxvnni, kernels_avx512; /* NO_PATH_…: the compiler does not know it */

static uint64_t enabled_state(void) { /* registers that the system saves */
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

/* All paths of the processor, best first. */
static int list_paths(const kernels_t *out[4]) {
    uint32_t a, b, c, d, first_c = 0, b7 = 0, c7 = 0, a71 = 0;
    int count = 0;
    if (__get_cpuid(1, &a, &b, &c, &d)) first_c = c;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d)) { b7 = b; c7 = c; }
    if (__get_cpuid_count(7, 1, &a, &b, &c, &d)) a71 = a;
    uint64_t state = first_c >> 27 & 1 ? enabled_state() : 0;
    int avx2 = (first_c >> 12 & first_c >> 29 & b7 >> 5 & 1) && (state & 6) == 6; /* FMA, F16C, AVX2 */
    int avx512 = (b7 >> 16 & b7 >> 30 & b7 >> 31 & c7 >> 11 & 1) && (state & 0xe6) == 0xe6; /* F, BW, VL, VNNI */
#ifndef NO_PATH_AVX512
    if (avx2 && avx512) out[count++] = &kernels_avx512;
#endif
#ifndef NO_PATH_AVXVNNI
    if (avx2 && (a71 >> 4 & 1)) out[count++] = &kernels_avxvnni;
#endif
#ifndef NO_PATH_AVX2
    if (avx2) out[count++] = &kernels_avx2;
#endif
    out[count++] = &kernels_scalar;
    return count;
}
#elif defined(__aarch64__) && !defined(NO_PATH_NEON)
#ifdef __linux__
#include <sys/auxv.h>
static int has_dot(void) { return getauxval(AT_HWCAP) >> 20 & 1; }
#else
static int has_dot(void) { return 1; } /* every processor of macOS has it */
#endif
extern const kernels_t kernels_neon;

static int list_paths(const kernels_t *out[4]) {
    int count = 0;
    if (has_dot()) out[count++] = &kernels_neon;
    out[count++] = &kernels_scalar;
    return count;
}
#else
static int list_paths(const kernels_t *out[4]) {
    out[0] = &kernels_scalar;
    return 1;
}
#endif

const kernels_t *find_kernels(const char *name) {
    const kernels_t *paths[4];
    int count = list_paths(paths);
    if (!name || !*name) return paths[0];
    for (int i = 0; i < count; i++)
        if (!strcmp(paths[i]->name, name)) return paths[i];
    return NULL;
}
