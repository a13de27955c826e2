/* Reads the blocks of a GGUF file (layouts: ggml's k-quants and legacy quants) and packs them into tiles. */
#include "forms.h"

#include <math.h>
#include <string.h>

/* One block of a file, spread out: codes, integer scales and minima of its sub-blocks, and its float16 numbers. */
typedef struct {
    uint8_t code[SUPER];
    int8_t scale[SUPER / 16], minimum[SUPER / 16];
    uint16_t d, dmin;
} block_t;

static const int8_t IQ4_VALUES[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

float half_to_float(uint16_t half) {
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, exponent = (half >> 10) & 31, mantissa = half & 1023, bits;
    if (exponent == 0) {
        float small = (float)mantissa * 0x1p-24f;
        memcpy(&bits, &small, 4);
        bits |= sign;
    } else if (exponent == 31) {
        bits = sign | 0x7f800000u | mantissa << 13;
    } else {
        bits = sign | (exponent + 112) << 23 | mantissa << 13;
    }
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

uint16_t float_to_half(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    uint16_t sign = (uint16_t)((bits >> 16) & 0x8000);
    bits &= 0x7fffffffu;
    if (bits > 0x7f800000u) return (uint16_t)(sign | 0x7e00 | ((bits >> 13) & 0x3ff));
    if (bits >= 0x477ff000u) return (uint16_t)(sign | 0x7c00);  /* 65520 and above round to infinity */
    if (bits < 0x38800000u) {                                   /* below 2^-14: a multiple of 2^-24 */
        float magnitude;
        memcpy(&magnitude, &bits, 4);
        return (uint16_t)(sign | (uint16_t)lrintf(magnitude * 0x1p24f));
    }
    uint32_t rounded = bits + 0xfff + ((bits >> 13) & 1);
    return (uint16_t)(sign | ((rounded - 0x38000000u) >> 13));
}

int format_block(int format, int *inputs, int *bytes) {
    static const struct { int format, inputs, bytes; } table[] = {
        {GGUF_F32, 1, 4}, {GGUF_F16, 1, 2}, {GGUF_BF16, 1, 2}, {GGUF_Q4_0, 32, 18}, {GGUF_Q4_1, 32, 20},
        {GGUF_Q5_0, 32, 22}, {GGUF_Q5_1, 32, 24}, {GGUF_Q8_0, 32, 34}, {GGUF_Q2_K, 256, 84}, {GGUF_Q3_K, 256, 110},
        {GGUF_Q4_K, 256, 144}, {GGUF_Q5_K, 256, 176}, {GGUF_Q6_K, 256, 210}, {GGUF_IQ4_NL, 32, 18},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        if (table[i].format == format) {
            *inputs = table[i].inputs;
            *bytes = table[i].bytes;
            return 1;
        }
    }
    return 0;
}

int form_of(int format, form_t *form) {
    switch (format) {
    case GGUF_Q4_0: *form = (form_t){4, 1, 1, 0, 8}; return 1;
    case GGUF_Q4_1: *form = (form_t){4, 1, 1, 1, 0}; return 1;
    case GGUF_Q5_0: *form = (form_t){5, 1, 1, 0, 16}; return 1;
    case GGUF_Q5_1: *form = (form_t){5, 1, 1, 1, 0}; return 1;
    case GGUF_Q2_K: *form = (form_t){4, 8, 2, 1, 0}; return 1;
    case GGUF_Q3_K: *form = (form_t){4, 8, 2, 0, 4}; return 1;
    case GGUF_Q4_K: *form = (form_t){4, 8, 1, 1, 0}; return 1;
    case GGUF_Q5_K: *form = (form_t){5, 8, 1, 1, 0}; return 1;
    case GGUF_Q6_K: *form = (form_t){6, 8, 2, 0, 32}; return 1;
    case GGUF_F32:
    case GGUF_F16:
    case GGUF_BF16:
    case GGUF_IQ4_NL:
    case GGUF_Q8_0: *form = (form_t){8, 1, 1, 0, 0}; return 1;
    default: return 0;
    }
}

static size_t group_bytes(const form_t *form) {
    return (size_t)64 * form->bits + (form->groups > 1 ? (size_t)TILE * form->parts * (1 + form->minima) : 0);
}

static size_t head_bytes(const form_t *form) { return (size_t)2 * TILE * (1 + form->minima); }

size_t tile_bytes(const form_t *form, int inputs) {
    return (size_t)(inputs / (GROUP * form->groups)) * (head_bytes(form) + form->groups * group_bytes(form));
}

static uint16_t read16(const uint8_t *at) { return (uint16_t)(at[0] | at[1] << 8); }

/* Scale and minimum j (of 8) of Q4_K and Q5_K: 6 bits each, in 12 bytes. */
static void read_scale(const uint8_t *s, int j, block_t *out) {
    if (j < 4) {
        out->scale[j] = (int8_t)(s[j] & 63);
        out->minimum[j] = (int8_t)(s[j + 4] & 63);
    } else {
        out->scale[j] = (int8_t)((s[j + 4] & 15) | (s[j - 4] >> 6) << 4);
        out->minimum[j] = (int8_t)((s[j + 4] >> 4) | (s[j] >> 6) << 4);
    }
}

/* The loops below run over 16 or 32 neighbouring bytes, so that compilers make vectors of them. */
static void spread(const uint8_t *from, int count, int shift, int mask, uint8_t *code) {
    for (int i = 0; i < count; i++) code[i] = (uint8_t)(from[i] >> shift & mask);
}

/* Add bit (or bits) `from >> shift & mask` of 32 bytes to codes, `up` places higher. */
static void add_bits(const uint8_t *from, int count, int shift, int mask, int up, uint8_t *code) {
    for (int i = 0; i < count; i++) code[i] = (uint8_t)(code[i] | (from[i] >> shift & mask) << up);
}

static void read_q2_k(const uint8_t *b, block_t *out) {
    for (int i = 0; i < 16; i++) {
        out->scale[i] = (int8_t)(b[i] & 15);
        out->minimum[i] = (int8_t)(b[i] >> 4);
    }
    for (int j = 0; j < 8; j++) spread(b + 16 + 32 * (j / 4), 32, 2 * (j % 4), 3, out->code + 32 * j);
    out->d = read16(b + 80);
    out->dmin = read16(b + 82);
}

static void read_q3_k(const uint8_t *b, block_t *out) {
    for (int j = 0; j < 8; j++) {
        spread(b + 32 + 32 * (j / 4), 32, 2 * (j % 4), 3, out->code + 32 * j);
        add_bits(b, 32, j, 1, 2, out->code + 32 * j);
    }
    const uint8_t *s = b + 96;
    for (int i = 0; i < 16; i++) {
        int low = i < 8 ? s[i] & 15 : s[i - 8] >> 4;
        out->scale[i] = (int8_t)((low | (s[8 + i % 4] >> (2 * (i / 4)) & 3) << 4) - 32);
    }
    out->d = read16(b + 108);
}

static void read_q45_k(const uint8_t *b, int high, block_t *out) {
    const uint8_t *low = b + 16 + (high ? 32 : 0);
    for (int j = 0; j < 8; j++) {
        spread(low + 32 * (j / 2), 32, 4 * (j % 2), 15, out->code + 32 * j);
        if (high) add_bits(b + 16, 32, j, 1, 4, out->code + 32 * j);
        read_scale(b + 4, j, out);
    }
    out->d = read16(b);
    out->dmin = read16(b + 2);
}

static void read_q6_k(const uint8_t *b, block_t *out) {
    for (int j = 0; j < 8; j++) {
        int half = j / 4, quarter = j % 4;
        spread(b + 64 * half + 32 * (quarter % 2), 32, 4 * (quarter / 2), 15, out->code + 32 * j);
        add_bits(b + 128 + 32 * half, 32, 2 * quarter, 3, 4, out->code + 32 * j);
    }
    memcpy(out->scale, b + 192, 16);
    out->d = read16(b + 208);
}

/* Q4_0, Q4_1, Q5_0, Q5_1 and IQ4_NL: 16 bytes hold inputs i and i + 16. */
static void read_legacy(const uint8_t *b, int format, block_t *out) {
    int minima = format == GGUF_Q4_1 || format == GGUF_Q5_1, high = format == GGUF_Q5_0 || format == GGUF_Q5_1;
    const uint8_t *bits = b + (minima ? 4 : 2), *low = bits + (high ? 4 : 0);
    spread(low, 16, 0, 15, out->code);
    spread(low, 16, 4, 15, out->code + 16);
    if (high) {
        uint32_t word;
        memcpy(&word, bits, 4);
        for (int i = 0; i < GROUP; i++) out->code[i] = (uint8_t)(out->code[i] | (word >> i & 1) << 4);
    }
    if (format == GGUF_IQ4_NL)
        for (int i = 0; i < GROUP; i++) out->code[i] = (uint8_t)IQ4_VALUES[out->code[i]];
    out->d = read16(b);
    out->dmin = minima ? (uint16_t)(read16(b + 2) ^ 0x8000) : 0;  /* the file adds what tiles subtract */
}

static float read_float(int format, const uint8_t *at) {
    uint32_t bits = read16(at);
    if (format == GGUF_F16) return half_to_float((uint16_t)bits);
    if (format == GGUF_F32) memcpy(&bits, at, 4);
    else bits <<= 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

/* Rounds 32 floats to 8 bits with one float16 scale. */
static void read_floats(const uint8_t *b, int format, block_t *out) {
    int size = format == GGUF_F32 ? 4 : 2;
    float most = 0;
    for (int i = 0; i < GROUP; i++) {
        float value = fabsf(read_float(format, b + i * size));
        if (value > most) most = value;
    }
    out->d = float_to_half(most / 127);
    float d = half_to_float(out->d);
    for (int i = 0; i < GROUP; i++) {
        float code = d > 0 ? read_float(format, b + i * size) / d : 0;
        out->code[i] = (uint8_t)(int8_t)lrintf(code > 127 ? 127 : code < -127 ? -127 : code);
    }
}

static void read_block(int format, const uint8_t *b, block_t *out) {
    switch (format) {
    case GGUF_Q2_K: read_q2_k(b, out); break;
    case GGUF_Q3_K: read_q3_k(b, out); break;
    case GGUF_Q4_K: read_q45_k(b, 0, out); break;
    case GGUF_Q5_K: read_q45_k(b, 1, out); break;
    case GGUF_Q6_K: read_q6_k(b, out); break;
    case GGUF_Q8_0:
        memcpy(out->code, b + 2, GROUP);
        out->d = read16(b);
        break;
    case GGUF_F32:
    case GGUF_F16:
    case GGUF_BF16: read_floats(b, format, out); break;
    default: read_legacy(b, format, out);
    }
}

/* Put output `o`'s codes of one group, 32 bytes, into the tile's rows. */
static void put_codes(uint8_t *group, int bits, int o, const uint8_t *code) {
    uint32_t word[8], *rows = (uint32_t *)(void *)group + o;
    memcpy(word, code, GROUP);
    if (bits == 8) {
        for (int j = 0; j < 8; j++) rows[TILE * j] = word[j];
        return;
    }
    const uint32_t low = 0x0f0f0f0fu;
    for (int j = 0; j < 4; j++) rows[TILE * j] = (word[2 * j] & low) | (word[2 * j + 1] & low) << 4;
    if (bits == 5) {
        uint32_t plane = 0;
        for (int j = 0; j < 8; j++) plane |= (word[j] >> 4 & 0x01010101u) << j;
        rows[TILE * 4] = plane;
    } else if (bits == 6) {
        for (int p = 0; p < 2; p++) {
            uint32_t plane = 0;
            for (int j = 0; j < 4; j++) plane |= (word[4 * p + j] >> 4 & 0x03030303u) << (2 * j);
            rows[TILE * (4 + p)] = plane;
        }
    }
}

static void put_block(const form_t *form, uint8_t *at, int o, const block_t *block) {
    memcpy(at + 2 * o, &block->d, 2);
    if (form->minima) memcpy(at + 2 * TILE + 2 * o, &block->dmin, 2);
    at += head_bytes(form);
    for (int g = 0; g < form->groups; g++, at += group_bytes(form)) {
        put_codes(at, form->bits, o, block->code + GROUP * g);
        if (form->groups == 1) continue;
        uint8_t *numbers = at + (size_t)64 * form->bits + o;
        for (int p = 0; p < form->parts; p++) {
            numbers[TILE * p] = (uint8_t)block->scale[form->parts * g + p];
            if (form->minima) numbers[TILE * (form->parts + p)] = (uint8_t)block->minimum[form->parts * g + p];
        }
    }
}

/* Bytes of a row in the file. */
static size_t row_bytes(int format, int inputs) {
    int unit = 1, bytes = 4;
    format_block(format, &unit, &bytes);
    return (size_t)inputs / (size_t)unit * (size_t)bytes;
}

void pack_tiles(matrix_t *matrix, int format, const uint8_t *data, int first, int last) {
    const form_t *form = &matrix->form;
    int wide = GROUP * form->groups, blocks = matrix->inputs / wide;
    size_t whole = row_bytes(format, matrix->inputs), each = row_bytes(format, wide);
    size_t step = head_bytes(form) + form->groups * group_bytes(form);
    block_t block;
    memset(&block, 0, sizeof block);
    for (int tile = first; tile < last; tile++) {
        uint8_t *at = matrix->tiles + (size_t)tile * matrix->tile_bytes;
        memset(at, 0, matrix->tile_bytes);
        for (int o = 0; o < TILE && TILE * tile + o < matrix->outputs; o++) {
            const uint8_t *row = data + (size_t)(TILE * tile + o) * whole;
            for (int b = 0; b < blocks; b++) {
                read_block(format, row + (size_t)b * each, &block);
                put_block(form, at + (size_t)b * step, o, &block);
            }
        }
    }
}

void decode_row(int format, const uint8_t *data, int inputs, int64_t row, float *out) {
    const uint8_t *at = data + (size_t)row * row_bytes(format, inputs);
    form_t form = {8, 1, 1, 0, 0};
    if (format == GGUF_F32 || format == GGUF_F16 || format == GGUF_BF16) {
        for (int i = 0; i < inputs; i++) out[i] = read_float(format, at + i * (format == GGUF_F32 ? 4 : 2));
        return;
    }
    form_of(format, &form);
    int wide = GROUP * form.groups, part = GROUP / form.parts;
    block_t block;
    for (int b = 0; b < inputs / wide; b++, out += wide) {
        read_block(format, at + (size_t)b * row_bytes(format, wide), &block);
        float d = half_to_float(block.d), dmin = form.minima ? half_to_float(block.dmin) : 0;
        for (int i = 0; i < wide; i++) {
            int code = form.bits == 8 ? (int8_t)block.code[i] : block.code[i] - form.offset, p = i / part;
            float scale = form.groups > 1 ? d * (float)block.scale[p] : d;
            float least = form.minima ? (form.groups > 1 ? dmin * (float)block.minimum[p] : dmin) : 0;
            out[i] = scale * (float)code - least;
        }
    }
}
