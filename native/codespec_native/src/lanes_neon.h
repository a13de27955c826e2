/* Vectors of 4 numbers: arm64 with the dot product instructions. */
#include <arm_neon.h>

#define LANES 4
#define SIGNED_OFFSET 0

typedef float32x4_t vf;
typedef int32x4_t vi;
typedef uint8x16_t vb;

static inline vf f_load(const float *p) { return vld1q_f32(p); }
static inline void f_store(float *p, vf a) { vst1q_f32(p, a); }
static inline vf f_set(float a) { return vdupq_n_f32(a); }
static inline vf f_add(vf a, vf b) { return vaddq_f32(a, b); }
static inline vf f_sub(vf a, vf b) { return vsubq_f32(a, b); }
static inline vf f_mul(vf a, vf b) { return vmulq_f32(a, b); }
static inline vf f_div(vf a, vf b) { return vdivq_f32(a, b); }
static inline vf f_fma(vf a, vf b, vf c) { return vfmaq_f32(c, a, b); }
static inline vf f_nfma(vf a, vf b, vf c) { return vfmsq_f32(c, a, b); }
static inline vf f_max(vf a, vf b) { return vbslq_f32(vcgtq_f32(a, b), a, b); } /* as x86: b if one is not a number */
static inline vf f_min(vf a, vf b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
static inline vf f_abs(vf a) { return vabsq_f32(a); }
static inline vf f_half(const uint16_t *p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
static inline void f_put_half(uint16_t *p, vf a) { vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(a))); }
static inline vf f_int8(const int8_t *p) {
    int32_t word;
    memcpy(&word, p, 4);
    int16x8_t wide = vmovl_s8(vreinterpret_s8_s32(vdup_n_s32(word)));
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide)));
}
static inline vf f_int(vi a) { return vcvtq_f32_s32(a); }
static inline vf f_bits(vi a) { return vreinterpretq_f32_s32(a); }
static inline vi i_round(vf a) { return vcvtnq_s32_f32(a); }
static inline vi i_set(int32_t a) { return vdupq_n_s32(a); }
/* start + a * half[0] + b * half[1] in each lane. */
static inline vi i_start(int start, int a, int b, const int16_t half[2]) {
    return i_set(start + a * half[0] + b * half[1]);
}
static inline vi i_add(vi a, vi b) { return vaddq_s32(a, b); }
static inline void i_put_int8(int8_t *p, vi a) {
    int16x4_t words = vqmovn_s32(a);
    int32_t word = vget_lane_s32(vreinterpret_s32_s8(vqmovn_s16(vcombine_s16(words, words))), 0);
    memcpy(p, &word, 4);
}
static inline vf f_power(vi n) { return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(n, vdupq_n_s32(127)), 23)); }

static inline vb b_load(const uint8_t *p) { return vld1q_u8(p); }
static inline vb b_and(vb a, int mask) { return vandq_u8(a, vdupq_n_u8((uint8_t)mask)); }
static inline vb b_or(vb a, vb b) { return vorrq_u8(a, b); }
static inline vb b_left(vb a, int n) { return vshlq_u8(a, vdupq_n_s8((int8_t)n)); }
static inline vb b_right(vb a, int n) { return vshlq_u8(a, vdupq_n_s8((int8_t)-n)); }

static inline vi dot(int bits, int rows, int n, vi a, const vb *codes, const int8_t *x) {
    (void)rows;
    (void)bits;
    for (int j = 0; j < n; j += 4) {
        int8x16_t row = vld1q_s8(x + 4 * j);
        a = vdotq_laneq_s32(a, vreinterpretq_s8_u8(codes[j]), row, 0);
        a = vdotq_laneq_s32(a, vreinterpretq_s8_u8(codes[j + 1]), row, 1);
        a = vdotq_laneq_s32(a, vreinterpretq_s8_u8(codes[j + 2]), row, 2);
        a = vdotq_laneq_s32(a, vreinterpretq_s8_u8(codes[j + 3]), row, 3);
    }
    return a;
}
