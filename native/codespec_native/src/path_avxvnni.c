/* The AVX2 path with the dot products of AVX-VNNI (Intel's hybrid processors, from Alder Lake on). */
#include <math.h>
#include <string.h>

#include "kernels.h"
#define CODESPEC_VNNI _mm256_dpbusd_avx_epi32
#include "lanes_avx2.h"
#define NAME kernels_avxvnni
#define STRING "avxvnni"
#include "kernels.inc"
