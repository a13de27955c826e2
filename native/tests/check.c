/* Runs all kernels and a tiny model on one path, from a fixed seed, and prints a number for each result's bits: two paths,
   processors or compilers agree if they print the same. Usage: check PATH. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../codespec_native/src/rotary.h"
#include "../codespec_native/src/step.h"

matrix_t *codespec_pack(pool_t *pool, int format, int outputs, int inputs, const uint8_t *data);

static uint64_t state = 1;

static uint32_t number(void) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33);
}

static float real(void) { return (float)((int)(number() % 20001) - 10000) / 4000; }

static float *reals(int count, float factor) {
    float *made = malloc((size_t)count * sizeof *made);
    for (int i = 0; i < count; i++) made[i] = real() * factor;
    return made;
}

static void report(const char *name, int part, const void *data, size_t bytes) {
    uint64_t hash = 14695981039346656037u;
    for (size_t i = 0; i < bytes; i++) hash = (hash ^ ((const uint8_t *)data)[i]) * 1099511628211u;
    printf("%s %d %016llx\n", name, part, (unsigned long long)hash);
}

/* Random bytes of a matrix in a format, with small scales: its float16 numbers lie at these places of a block. */
static uint8_t *random_matrix(int format, int outputs, int inputs) {
    int unit, bytes;
    format_block(format, &unit, &bytes);
    size_t blocks = (size_t)outputs * (size_t)(inputs / unit);
    uint8_t *data = malloc(blocks * (size_t)bytes);
    for (size_t i = 0; i < blocks * (size_t)bytes; i++) data[i] = (uint8_t)number();
    int first = 0, second = -1;
    switch (format) {
    case GGUF_F32: case GGUF_F16: case GGUF_BF16: first = -1; break;
    case GGUF_Q4_1: case GGUF_Q5_1: case GGUF_Q4_K: case GGUF_Q5_K: second = 2; break;
    case GGUF_Q2_K: first = 80; second = 82; break;
    case GGUF_Q3_K: first = 108; break;
    case GGUF_Q6_K: first = 208; break;
    }
    for (size_t b = 0; b < blocks; b++) {
        uint8_t *at = data + b * (size_t)bytes;
        uint16_t d = float_to_half((float)(number() % 1000 + 100) * 1e-5f), m = float_to_half(real() * 1e-3f);
        if (first >= 0) memcpy(at + first, &d, 2);
        if (second >= 0) memcpy(at + second, &m, 2);
        float value = real() / 10;
        uint32_t whole;
        memcpy(&whole, &value, 4);
        uint16_t top = (uint16_t)(whole >> 16), half = float_to_half(value);
        if (format == GGUF_F32) memcpy(at, &value, 4);
        if (format == GGUF_F16) memcpy(at, &half, 2);
        if (format == GGUF_BF16) memcpy(at, &top, 2);
    }
    return data;
}

static const int FORMATS[] = {GGUF_F32, GGUF_F16, GGUF_BF16, GGUF_Q4_0, GGUF_Q4_1, GGUF_Q5_0, GGUF_Q5_1, GGUF_Q8_0,
                              GGUF_Q2_K, GGUF_Q3_K, GGUF_Q4_K, GGUF_Q5_K, GGUF_Q6_K, GGUF_IQ4_NL};

static void check_products(const kernels_t *k, pool_t *pool) {
    enum { OUT = 40, IN = 512, MAX = 19 };
    for (size_t f = 0; f < sizeof FORMATS / sizeof *FORMATS; f++) {
        uint8_t *data = random_matrix(FORMATS[f], OUT, IN);
        matrix_t *matrix = codespec_pack(pool, FORMATS[f], OUT, IN, data);
        float *x = reals(MAX * IN, 1), out[MAX * 48], alone[48];
        rounded_t *rows = calloc(MAX * IN / GROUP, sizeof *rows);
        x[7] = 400;
        for (int i = 0; i < IN; i++) x[3 * IN + i] = 0;
        for (int r = 0, step; r < MAX; r++) {
            rounded_t *block = panel_block(rows, MAX, r, IN / GROUP, 0, &step);
            k->round(x + r * IN, IN / GROUP, block, step);
        }
        for (int t = 0; t < 3; t++) k->tile(matrix, t, rows, MAX, out + TILE * t, 48);
        report("product", FORMATS[f], out, sizeof out);
        for (int r = 0; r < MAX; r++) {
            k->round(x + r * IN, IN / GROUP, rows, 1);
            for (int t = 0; t < 3; t++) k->tile(matrix, t, rows, 1, alone + TILE * t, 48);
            if (memcmp(alone, out + 48 * r, sizeof alone)) printf("format %d: row %d alone differs\n", FORMATS[f], r);
        }
        float row[IN];
        decode_row(FORMATS[f], data, IN, 17, row);
        report("decode", FORMATS[f], row, sizeof row);
        free(data), free(x), free(rows);
    }
}

static void check_rows(const kernels_t *k) {
    float *x = reals(256, 3), *w = reals(256, 1), out[256], cosine[64], sine[64];
    uint16_t halves[256];
    for (int i = 0; i < 64; i++) cosine[i] = real(), sine[i] = real();
    k->norm(x, w, 1e-6f, 256, out);
    report("norm", 0, out, sizeof out);
    k->gate(x, w, 256, out);
    report("gate", 0, out, sizeof out);
    x[0] = -200, x[1] = 200, x[2] = 0;
    k->gate(x, w, 256, out);
    report("gate", 1, out, sizeof out);
    k->add(out, x, 0.3f, 256);
    report("add", 0, out, sizeof out);
    for (int half = 20; half <= 64; half += 44)
        for (int halved = 0; halved < 2; halved++) {
            k->rotate(out, cosine, sine, half, halved);
            report("rotate", half + halved, out, sizeof out);
        }
    for (int i = 0; i < 256; i++) x[i] = x[i] * (i % 5 ? 1 : 1e-6f) * (i % 7 ? 1 : 3e4f);
    k->put_half(x, 256, halves);
    report("half", 0, halves, sizeof halves);
    float table[2][300 * 32];
    codespec_rotary(1e6, 1, NULL, 64, 300, table[0], table[1]);
    report("rotary", 0, table, sizeof table);
}

static const float *vector(int size) {
    float *made = reals(size, 0.2f);
    for (int i = 0; i < size; i++) made[i] += 1;
    return made;
}

static void check_step(const kernels_t *k, pool_t *pool) {
    enum { HIDDEN = 256, HEADS = 6, KEYS = 2, SIZE = 64, INNER = 512, LAYERS = 2, VOCABULARY = 100, CAPACITY = 64 };
    static const int kinds[] = {GGUF_Q4_K, GGUF_Q5_0, GGUF_Q6_K, GGUF_Q8_0};
    layer_t layers[LAYERS];
    int made = 0;
#define MATRIX(out, in) ((in) % 256 ? codespec_pack(pool, GGUF_Q5_0, out, in, random_matrix(GGUF_Q5_0, out, in)) \
                                    : codespec_pack(pool, kinds[made % 4], out, in, random_matrix(kinds[made % 4], out, in))); made++
    for (int l = 0; l < LAYERS; l++) {
        layer_t layer = {.window = l ? 20 : 0};
        layer.input_norm = vector(HIDDEN), layer.inner_norm = vector(HIDDEN);
        layer.query = MATRIX(HEADS * SIZE, HIDDEN);
        layer.key = MATRIX(KEYS * SIZE, HIDDEN);
        layer.value = MATRIX(KEYS * SIZE, HIDDEN);
        layer.out = MATRIX(HIDDEN, HEADS * SIZE);
        layer.gate = MATRIX(INNER, HIDDEN);
        layer.up = MATRIX(INNER, HIDDEN);
        layer.down = MATRIX(HIDDEN, INNER);
        if (l) layer.query_norm = vector(SIZE), layer.key_norm = vector(SIZE), layer.query_bias = vector(HEADS * SIZE);
        layers[l] = layer;
    }
    float cosine[CAPACITY * SIZE / 2], sine[CAPACITY * SIZE / 2];
    codespec_rotary(1e4, 1, NULL, SIZE, CAPACITY, cosine, sine);
    size_t cells = (size_t)LAYERS * 2 * KEYS * CAPACITY * SIZE;
    model_t model = {.layers = LAYERS, .hidden = HIDDEN, .heads = HEADS, .key_heads = KEYS, .size = SIZE,
                     .inner = INNER, .rotated = SIZE, .halves = 1, .slots = 2, .capacity = CAPACITY,
                     .embedding_format = GGUF_Q4_K, .epsilon = 1e-6f, .embedding_scale = 1, .residual_scale = 0.7f,
                     .attention_scale = 0.125f, .logit_scale = 1, .cosine = cosine, .sine = sine, .layer = layers};
    model.embedding = random_matrix(GGUF_Q4_K, VOCABULARY, HIDDEN);
    model.final_norm = vector(HIDDEN);
    model.head = codespec_pack(pool, GGUF_Q4_K, VOCABULARY, HIDDEN, model.embedding);
    model.keys = calloc(cells, 2), model.values = calloc(cells, 2);
    workspace_t *space = workspace_new(&model, pool, 32);
    int32_t tokens[50], slots[50], positions[50], kept[50];
    float logits[50][112], single[112];
    for (int i = 0; i < 50; i++)
        tokens[i] = (int32_t)(number() % VOCABULARY), slots[i] = i < 40 ? 0 : 1, positions[i] = i % 40, kept[i] = i;
    codespec_step(&model, space, pool, k, 50, tokens, slots, positions, 50, kept, logits[0]);
    report("step", 0, logits, sizeof logits);
    for (int i = 0; i < 40; i++) { /* the same text, token by token, in the other slot */
        int32_t one = 1, zero = 0, at = i;
        codespec_step(&model, space, pool, k, 1, tokens + i, &one, &at, 1, &zero, single);
        if (memcmp(single, logits[i], sizeof single)) printf("step: row %d alone differs\n", i);
    }
    int32_t written[40], first = 0; /* eight tokens, and the 32 most probable ones after them */
    memcpy(written, tokens, 8 * sizeof *written);
    for (int32_t i = 0; i < 39; i++) {
        codespec_step(&model, space, pool, k, 1, written + i, &first, &i, 1, &first, single);
        if (i < 7) continue;
        written[i + 1] = 0;
        for (int t = 1; t < VOCABULARY; t++)
            if (single[t] > single[written[i + 1]]) written[i + 1] = t;
    }
    report("tokens", 0, written, sizeof written);
    report("tokens", 1, single, sizeof single);
    workspace_free(space);
}

int main(int count, char **words) {
    const kernels_t *kernels = find_kernels(count > 1 ? words[1] : "");
    if (!kernels) {
        printf("this processor can't run the path %s\n", words[1]);
        return 2;
    }
    for (int threads = 1; threads <= 3; threads += 2) {
        pool_t *pool = pool_new(threads);
        state = 1;
        check_products(kernels, pool);
        check_rows(kernels);
        check_step(kernels, pool);
        pool_free(pool);
    }
    return 0;
}
