/* The intrinsics of AVX-512 and AVX-VNNI in plain C, by SIMDe, for processors without them. Compile with -DSIMDE_NO_NATIVE.
   What SIMDe 0.7 lacks, or does not fuse, is here. */
#ifndef CODESPEC_SIMDE_IMMINTRIN_H
#define CODESPEC_SIMDE_IMMINTRIN_H

#define SIMDE_ENABLE_NATIVE_ALIASES
#include <math.h>
#include <simde/x86/avx512.h>
#include <simde/x86/f16c.h>
#include <simde/x86/fma.h>
#include <string.h>

#include "kernels.h"

/* A function of one vector, number by number. */
#define EACH_OF(name, To, to_t, From, from_t, expression)  \
    static inline To name(From vector) {                   \
        from_t from[16];                                   \
        to_t to[16];                                       \
        To result;                                         \
        memcpy(from, &vector, sizeof from);                \
        for (int i = 0; i < 16; i++) to[i] = (expression); \
        memcpy(&result, to, sizeof to);                    \
        return result;                                     \
    }
EACH_OF(half_to_floats, __m512, float, __m256i, uint16_t, half_to_float(from[i]))
EACH_OF(floats_to_half, __m256i, uint16_t, __m512, float, float_to_half(from[i]))
EACH_OF(whole_to_floats, __m512, float, __m512i, int32_t, (float)from[i])
EACH_OF(floats_to_whole, __m512i, int32_t, __m512, float, (int32_t)lrintf(from[i]))
EACH_OF(bytes_to_whole, __m512i, int32_t, __m128i, int8_t, from[i])
EACH_OF(whole_to_bytes, __m128i, int8_t, __m512i, int32_t, (int8_t)from[i])

#define FUSED(name, Vector, count, sign)                                          \
    static inline Vector name(Vector a, Vector b, Vector c) {                     \
        float x[count], y[count], z[count];                                       \
        memcpy(x, &a, sizeof x);                                                  \
        memcpy(y, &b, sizeof y);                                                  \
        memcpy(z, &c, sizeof z);                                                  \
        for (int i = 0; i < count; i++) z[i] = fmaf(sign x[i], y[i], z[i]);       \
        memcpy(&a, z, sizeof z);                                                  \
        return a;                                                                 \
    }
FUSED(fused_512, __m512, 16, +)
FUSED(fused_negative_512, __m512, 16, -)
FUSED(fused_256, __m256, 8, +)
FUSED(fused_negative_256, __m256, 8, -)

#undef _mm256_fmadd_ps
#undef _mm256_fnmadd_ps
#undef _mm512_cvtepi32_epi8
#undef _mm512_cvtepi32_ps
#undef _mm512_cvtepi8_epi32
#undef _mm512_cvtph_ps
#undef _mm512_cvtps_epi32
#undef _mm512_cvtps_ph
#undef _mm512_fmadd_ps
#undef _mm512_fnmadd_ps
#define _mm256_dpbusd_avx_epi32 simde_mm256_dpbusd_epi32
#define _mm256_fmadd_ps fused_256
#define _mm256_fnmadd_ps fused_negative_256
#define _mm512_cvtepi32_epi8 whole_to_bytes
#define _mm512_cvtepi32_ps whole_to_floats
#define _mm512_cvtepi8_epi32 bytes_to_whole
#define _mm512_cvtph_ps half_to_floats
#define _mm512_cvtps_epi32 floats_to_whole
#define _mm512_cvtps_ph(vector, rounding) floats_to_half(vector)
#define _mm512_fmadd_ps fused_512
#define _mm512_fnmadd_ps fused_negative_512

#endif
