/* The kernels of a path: the arithmetic of a step, compiled once for each instruction set, with the same bits in all.

   Integers are summed exactly in any order. Floats follow one order on every path: sums over a row run in 16 partial sums
   (element i in sum i % 16) that are added in a fixed tree, and all multiply-adds are fused. */
#ifndef CODESPEC_KERNELS_H
#define CODESPEC_KERNELS_H

#include "forms.h"

enum { ROWS = 16, QUERIES = 8 };

/* 32 inputs of a row in 8 bits: value = scale * code.

   Rows lie in panels of up to ROWS rows: a panel of n rows that begins at row r is the n blocks of inputs 0…31, then those
   of inputs 32…63, and so on, and begins at block r * inputs / 32. */
typedef struct {
    int8_t code[GROUP];
    float scale;
    int16_t half[2];  /* sums of the codes of inputs 0…15 and 16…31 */
    float sum;        /* scale * (half[0] + half[1]) */
} rounded_t;

/* Queries of one sequence and one key head: [count <= QUERIES, size] each, and how many keys each attends to. */
typedef struct {
    int count, size, first[QUERIES], length[QUERIES];
    const float *query[QUERIES];
    float *out[QUERIES];
    const uint16_t *keys;   /* float16, [capacity / 16][size][16] */
    const uint16_t *values; /* float16, [size / 16][capacity][16] */
    int capacity;
    float scale;
    float *scores; /* room for QUERIES * (longest length, rounded up to 16) */
} attention_t;

typedef struct {
    const char *name;
    /* out[r * stride + o] = row r times output o, for the 16 outputs of a tile and `rows` rows of `inputs`. */
    void (*tile)(const matrix_t *matrix, int tile, const rounded_t *x, int rows, float *out, size_t stride);
    /* Round groups of 32 inputs into blocks that are `step` apart. */
    void (*round)(const float *x, int groups, rounded_t *block, int step);
    void (*norm)(const float *x, const float *weight, float epsilon, int size, float *out);
    /* Rotates one head in place: pairs (i, i + half) if `halves`, else (2 i, 2 i + 1). */
    void (*rotate)(float *head, const float *cosine, const float *sine, int half, int halves);
    void (*gate)(const float *gate, const float *up, int size, float *out); /* silu(gate) * up */
    void (*add)(float *x, const float *more, float factor, int size);        /* x += factor * more */
    void (*put_half)(const float *x, int size, uint16_t *out);
    void (*attend)(const attention_t *call);
} kernels_t;

/* The block of a row's inputs 32 group…32 group + 31 among `rows` rows, and the step to that of the next 32 inputs. */
static inline rounded_t *panel_block(rounded_t *x, int rows, int row, int groups, int group, int *step) {
    int first = row - row % ROWS;
    *step = rows - first < ROWS ? rows - first : ROWS;
    return x + (size_t)first * (size_t)groups + (size_t)group * (size_t)*step + (size_t)(row - first);
}

/* The best path that this processor has and `most` allows (NULL: any); NULL if there is no such path. */
const kernels_t *find_kernels(const char *most);

#endif
