/* What Python calls, beside codespec_step and codespec_rotary. Every size was checked by the caller. */
#include <stdlib.h>

#include "aligned.h"
#include "step.h"

#ifndef CODESPEC_SOURCES
#define CODESPEC_SOURCES ""
#endif

/* A digest of the sources that the library was built from. */
const char *codespec_sources(void) { return CODESPEC_SOURCES; }

typedef struct {
    matrix_t *matrix;
    int format, units;
    const uint8_t *data;
} packing_t;

static int tiles_of(const matrix_t *matrix) { return (matrix->outputs + TILE - 1) / TILE; }

static void pack_unit(void *context, int unit, int thread) {
    (void)thread;
    packing_t *p = context;
    int tiles = tiles_of(p->matrix);
    pack_tiles(p->matrix, p->format, p->data, (int)((int64_t)tiles * unit / p->units),
               (int)((int64_t)tiles * (unit + 1) / p->units));
}

/* Pack a matrix that lies in `data` as in a file. NULL if the format is not read or memory is short. */
matrix_t *codespec_pack(pool_t *pool, int format, int outputs, int inputs, const uint8_t *data) {
    matrix_t *matrix = calloc(1, sizeof *matrix);
    if (!matrix || !form_of(format, &matrix->form) || inputs % (GROUP * matrix->form.groups)) {
        free(matrix);
        return NULL;
    }
    matrix->outputs = outputs;
    matrix->inputs = inputs;
    matrix->tile_bytes = tile_bytes(&matrix->form, inputs);
    matrix->tiles = aligned_new(matrix->tile_bytes * (size_t)tiles_of(matrix));
    if (!matrix->tiles) {
        free(matrix);
        return NULL;
    }
    int units = 64 < tiles_of(matrix) ? 64 : tiles_of(matrix);
    packing_t packing = {matrix, format, units, data};
    pool_run(pool, pack_unit, &packing, units);
    return matrix;
}

size_t codespec_packed_bytes(const matrix_t *matrix) { return matrix->tile_bytes * (size_t)tiles_of(matrix); }

void codespec_unpack_free(matrix_t *matrix) {
    if (matrix) aligned_free(matrix->tiles);
    free(matrix);
}

typedef struct {
    const matrix_t *matrix;
    const kernels_t *kernels;
    rounded_t *x;
    const float *rows;
    int count, units;
    float *out;
} product_t;

static void round_unit(void *context, int r, int thread) {
    (void)thread;
    product_t *p = context;
    int step, groups = p->matrix->inputs / GROUP;
    rounded_t *block = panel_block(p->x, p->count, r, groups, 0, &step);
    p->kernels->round(p->rows + (size_t)r * (size_t)p->matrix->inputs, groups, block, step);
}

static void product_unit(void *context, int unit, int thread) {
    (void)thread;
    product_t *p = context;
    int tiles = tiles_of(p->matrix);
    int from = (int)((int64_t)tiles * unit / p->units), to = (int)((int64_t)tiles * (unit + 1) / p->units);
    for (int t = from; t < to; t++)
        p->kernels->tile(p->matrix, t, p->x, p->count, p->out + TILE * (size_t)t, (size_t)tiles * TILE);
}

/* One product alone: rows [count, inputs] -> out [count, outputs rounded up to 16]. Returns 0 if memory is short. */
int codespec_multiply(const matrix_t *matrix, pool_t *pool, const kernels_t *kernels, const float *rows, int count,
                      float *out) {
    int units = 8 * pool_threads(pool), tiles = tiles_of(matrix);
    product_t p = {matrix, kernels, malloc(((size_t)count * (size_t)(matrix->inputs / GROUP) + 1) * sizeof(rounded_t)), rows,
                   count, units < tiles ? units : tiles, out};
    if (p.x) {
        pool_run(pool, round_unit, &p, count);
        pool_run(pool, product_unit, &p, p.units);
    }
    int ready = p.x != NULL;
    free(p.x);
    return ready;
}

const char *codespec_path_name(const kernels_t *kernels) { return kernels->name; }
