/* Vectors of 8 numbers: AVX2, FMA, F16C; with VNNI if CODESPEC_VNNI is defined. */
#include <immintrin.h>

#define LANES 8
#ifdef CODESPEC_VNNI
#define SIGNED_OFFSET 128 /* the instruction takes unsigned codes */
#else
#define SIGNED_OFFSET 0
#endif

typedef __m256 vf;
typedef __m256i vi;
typedef __m256i vb;

static inline vf f_load(const float *p) { return _mm256_loadu_ps(p); }
static inline void f_store(float *p, vf a) { _mm256_storeu_ps(p, a); }
static inline vf f_set(float a) { return _mm256_set1_ps(a); }
static inline vf f_add(vf a, vf b) { return _mm256_add_ps(a, b); }
static inline vf f_sub(vf a, vf b) { return _mm256_sub_ps(a, b); }
static inline vf f_mul(vf a, vf b) { return _mm256_mul_ps(a, b); }
static inline vf f_div(vf a, vf b) { return _mm256_div_ps(a, b); }
static inline vf f_fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
static inline vf f_nfma(vf a, vf b, vf c) { return _mm256_fnmadd_ps(a, b, c); }
static inline vf f_max(vf a, vf b) { return _mm256_max_ps(a, b); }
static inline vf f_min(vf a, vf b) { return _mm256_min_ps(a, b); }
static inline vf f_abs(vf a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
static inline vf f_half(const uint16_t *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)); }
static inline void f_put_half(uint16_t *p, vf a) { _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(a, 0)); }
static inline vf f_int8(const int8_t *p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}
static inline vf f_int(vi a) { return _mm256_cvtepi32_ps(a); }
static inline vf f_bits(vi a) { return _mm256_castsi256_ps(a); }
static inline vi i_round(vf a) { return _mm256_cvtps_epi32(a); }
static inline vi i_set(int32_t a) { return _mm256_set1_epi32(a); }
/* start + a * half[0] + b * half[1] in each lane. */
static inline vi i_start(int start, int a, int b, const int16_t half[2]) {
    return i_set(start + a * half[0] + b * half[1]);
}
static inline vi i_add(vi a, vi b) { return _mm256_add_epi32(a, b); }
static inline void i_put_int8(int8_t *p, vi a) {
    __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    _mm_storel_epi64((__m128i *)p, _mm_packs_epi16(words, words));
}
static inline vf f_power(vi n) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
}

static inline vb b_load(const uint8_t *p) { return _mm256_loadu_si256((const __m256i *)p); }
static inline vb b_and(vb a, int mask) { return _mm256_and_si256(a, _mm256_set1_epi8((char)mask)); }
static inline vb b_or(vb a, vb b) { return _mm256_or_si256(a, b); }
static inline vb b_left(vb a, int n) { return _mm256_slli_epi16(a, n); }
static inline vb b_right(vb a, int n) { return _mm256_srli_epi16(a, n); }

static inline vb four(const int8_t *x) {
    int32_t word;
    memcpy(&word, x, 4);
    return _mm256_set1_epi32(word);
}

#ifdef CODESPEC_VNNI
/* One row needs two chains of additions, or their latency limits it; several rows have chains enough. */
static inline vi dot(int bits, int rows, int n, vi a, const vb *codes, const int8_t *x) {
    vi b = _mm256_setzero_si256();
    for (int j = 0; j < n; j++) {
        vb code = bits == 8 ? _mm256_xor_si256(codes[j], _mm256_set1_epi8(-128)) : codes[j];
        if (j % 2 && rows < 4) b = CODESPEC_VNNI(b, code, four(x + 4 * j));
        else a = CODESPEC_VNNI(a, code, four(x + 4 * j));
    }
    return rows < 4 ? _mm256_add_epi32(a, b) : a;
}
#else
/* Pairs of products fit into 16 bits, and so do sums of this many pairs: 2 * 15 * 127 * 8, 2 * 31 * 127 * 4, 2 * 63 * 127 * 2
   and 2 * 128 * 127 * 1 are below 2^15. */
static inline vi dot(int bits, int rows, int n, vi a, const vb *codes, const int8_t *x) {
    (void)rows;
    const __m256i ones = _mm256_set1_epi16(1);
    int run = bits == 4 ? 8 : bits == 5 ? 4 : bits == 6 ? 2 : 1;
    if (run > n) run = n;
    for (int j = 0; j < n; j += run) {
        __m256i sum = _mm256_setzero_si256();
        for (int i = j; i < j + run; i++) {
            __m256i row = four(x + 4 * i);
            __m256i pair = bits == 8 ? _mm256_maddubs_epi16(_mm256_abs_epi8(codes[i]), _mm256_sign_epi8(row, codes[i]))
                                     : _mm256_maddubs_epi16(codes[i], row);
            sum = i == j ? pair : _mm256_add_epi16(sum, pair);
        }
        a = _mm256_add_epi32(a, _mm256_madd_epi16(sum, ones));
    }
    return a;
}
#endif
