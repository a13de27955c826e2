/* Vectors of 16 numbers: AVX-512 (F, BW, VL) with VNNI. */
#include <immintrin.h>

#define LANES 16
#define SIGNED_OFFSET 128

typedef __m512 vf;
typedef __m512i vi;
typedef __m512i vb;

static inline vf f_load(const float *p) { return _mm512_loadu_ps(p); }
static inline void f_store(float *p, vf a) { _mm512_storeu_ps(p, a); }
static inline vf f_set(float a) { return _mm512_set1_ps(a); }
static inline vf f_add(vf a, vf b) { return _mm512_add_ps(a, b); }
static inline vf f_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
static inline vf f_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
static inline vf f_div(vf a, vf b) { return _mm512_div_ps(a, b); }
static inline vf f_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
static inline vf f_nfma(vf a, vf b, vf c) { return _mm512_fnmadd_ps(a, b, c); }
static inline vf f_max(vf a, vf b) { return _mm512_max_ps(a, b); }
static inline vf f_min(vf a, vf b) { return _mm512_min_ps(a, b); }
static inline vf f_abs(vf a) {
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(a), _mm512_set1_epi32(0x7fffffff)));
}
static inline vf f_half(const uint16_t *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
static inline void f_put_half(uint16_t *p, vf a) { _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(a, 0)); }
static inline vf f_int8(const int8_t *p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
}
static inline vf f_int(vi a) { return _mm512_cvtepi32_ps(a); }
static inline vf f_bits(vi a) { return _mm512_castsi512_ps(a); }
static inline vi i_round(vf a) { return _mm512_cvtps_epi32(a); }
static inline vi i_set(int32_t a) { return _mm512_set1_epi32(a); }
/* start + a * half[0] + b * half[1] in each lane. */
static inline vi i_start(int start, int a, int b, const int16_t half[2]) {
    vi sum = _mm512_set1_epi32(start);
    if (!a && !b) return sum;
    vi factors = _mm512_set1_epi32((int)((uint32_t)(uint16_t)a | (uint32_t)(uint16_t)b << 16));
#ifdef __AVX512VNNI__
    __asm__("vpdpwssd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(factors), "m"(*(const int16_t(*)[2])half));
    return sum;
#else
    int32_t word;
    memcpy(&word, half, 4);
    return _mm512_dpwssd_epi32(sum, factors, _mm512_set1_epi32(word));
#endif
}
static inline vi i_add(vi a, vi b) { return _mm512_add_epi32(a, b); }
static inline void i_put_int8(int8_t *p, vi a) { _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8(a)); }
static inline vf f_power(vi n) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(n, _mm512_set1_epi32(127)), 23));
}

static inline vb b_load(const uint8_t *p) { return _mm512_loadu_si512(p); }
static inline vb b_and(vb a, int mask) { return _mm512_and_si512(a, _mm512_set1_epi8((char)mask)); }
static inline vb b_or(vb a, vb b) { return _mm512_or_si512(a, b); }
static inline vb b_left(vb a, int n) { return _mm512_slli_epi16(a, (unsigned)n); }
static inline vb b_right(vb a, int n) { return _mm512_srli_epi16(a, (unsigned)n); }

/* a + sums of four products for each lane, of the codes and four bytes that each lane shares. */
static inline vi add_products(vi a, vb codes, const int8_t *x) {
#ifdef __AVX512VNNI__ /* with the broadcast in the instruction, which compilers do not do */
    __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(a) : "v"(codes), "m"(*(const int8_t(*)[4])x));
    return a;
#else
    int32_t word;
    memcpy(&word, x, 4);
    return _mm512_dpbusd_epi32(a, codes, _mm512_set1_epi32(word));
#endif
}

/* One row needs two chains of additions, or their latency limits it; several rows have chains enough. */
static inline vi dot(int bits, int rows, int n, vi a, const vb *codes, const int8_t *x) {
    vi b = _mm512_setzero_si512();
    for (int j = 0; j < n; j++) {
        vb code = bits == 8 ? _mm512_xor_si512(codes[j], _mm512_set1_epi8(-128)) : codes[j];
        if (j % 2 && rows < 4) b = add_products(b, code, x + 4 * j);
        else a = add_products(a, code, x + 4 * j);
    }
    return rows < 4 ? _mm512_add_epi32(a, b) : a;
}
