/* Vectors of 16 numbers in plain C: the reference for all other paths, and the path of processors without any of them. */
#include <math.h>

#define LANES 16
#ifndef ONE_KERNEL
#define ONE_KERNEL
#endif
#define SIGNED_OFFSET 0 /* added to 8-bit codes before `dot` */

typedef struct { float v[LANES]; } vf;
typedef struct { int32_t v[LANES]; } vi;
typedef struct { uint8_t b[64]; } vb;

#define EACH for (int l = 0; l < LANES; l++)
#define VF(expression) vf r; EACH r.v[l] = (expression); return r
#define VI(expression) vi r; EACH r.v[l] = (expression); return r
#define VB(expression) vb r; for (int l = 0; l < 64; l++) r.b[l] = (uint8_t)(expression); return r

static inline vf f_load(const float *p) { VF(p[l]); }
static inline void f_store(float *p, vf a) { EACH p[l] = a.v[l]; }
static inline vf f_set(float a) { VF(a); }
static inline vf f_add(vf a, vf b) { VF(a.v[l] + b.v[l]); }
static inline vf f_sub(vf a, vf b) { VF(a.v[l] - b.v[l]); }
static inline vf f_mul(vf a, vf b) { VF(a.v[l] * b.v[l]); }
static inline vf f_div(vf a, vf b) { VF(a.v[l] / b.v[l]); }
static inline vf f_fma(vf a, vf b, vf c) { VF(fmaf(a.v[l], b.v[l], c.v[l])); }
static inline vf f_nfma(vf a, vf b, vf c) { VF(fmaf(-a.v[l], b.v[l], c.v[l])); }
static inline vf f_max(vf a, vf b) { VF(a.v[l] > b.v[l] ? a.v[l] : b.v[l]); }
static inline vf f_min(vf a, vf b) { VF(a.v[l] < b.v[l] ? a.v[l] : b.v[l]); }
static inline vf f_abs(vf a) { VF(fabsf(a.v[l])); }
static inline vf f_half(const uint16_t *p) { VF(half_to_float(p[l])); }
static inline void f_put_half(uint16_t *p, vf a) { EACH p[l] = float_to_half(a.v[l]); }
static inline vf f_int8(const int8_t *p) { VF((float)p[l]); }
static inline vf f_int(vi a) { VF((float)a.v[l]); }
static inline vf f_bits(vi a) { vf r; memcpy(&r, &a, sizeof r); return r; }
static inline vi i_round(vf a) { VI((int32_t)lrintf(a.v[l])); }
static inline vi i_set(int32_t a) { VI(a); }
/* start + a * half[0] + b * half[1] in each lane. */
static inline vi i_start(int start, int a, int b, const int16_t half[2]) {
    return i_set(start + a * half[0] + b * half[1]);
}
static inline vi i_add(vi a, vi b) { VI(a.v[l] + b.v[l]); }
static inline void i_put_int8(int8_t *p, vi a) { EACH p[l] = (int8_t)a.v[l]; }
static inline vf f_power(vi n) { /* 2^n for -126 <= n <= 127 */
    vf r;
    EACH {
        uint32_t bits = (uint32_t)(n.v[l] + 127) << 23;
        memcpy(&r.v[l], &bits, 4);
    }
    return r;
}

static inline vb b_load(const uint8_t *p) { vb r; memcpy(r.b, p, 64); return r; }
static inline vb b_and(vb a, int mask) { VB(a.b[l] & mask); }
static inline vb b_or(vb a, vb b) { VB(a.b[l] | b.b[l]); }
static inline vb b_left(vb a, int n) { VB(a.b[l] << n); }   /* the caller masks: neighbouring bytes may leak in */
static inline vb b_right(vb a, int n) { VB(a.b[l] >> n); }

/* a + sums of four products for each lane, of n code vectors and 4 n bytes x. */
static inline vi dot(int bits, int rows, int n, vi a, const vb *codes, const int8_t *x) {
    (void)rows;
    for (int j = 0; j < n; j++)
        EACH for (int i = 0; i < 4; i++) {
            int code = bits == 8 ? (int8_t)codes[j].b[4 * l + i] : codes[j].b[4 * l + i];
            a.v[l] += code * x[4 * j + i];
        }
    return a;
}
