#include "step.h"

#include "aligned.h"

#include <stdlib.h>
#include <string.h>

enum { SPLITS = 8, FEW_ROWS = 4 }; /* parts of a product for each thread; rows that one thread prepares faster alone */

struct workspace {
    int rows;
    float *hidden, *mixed, *normed, *more; /* [rows, …]: residual stream, queries + keys + values, a norm, its sum */
    rounded_t *x, *wide;                   /* rows of `hidden` or heads * size, and of `inner`, in 8 bits */
    float *scores, *pairs;                 /* of each thread */
    struct query_block *blocks;
};

/* A block of queries of one sequence and key head. */
typedef struct query_block {
    int row, key_head, first, count; /* queries are numbered row by row, head by head */
} query_block_t;

/* What the parts of a step share. */
typedef struct {
    const model_t *model;
    const kernels_t *kernels;
    workspace_t *space;
    const layer_t *layer;
    int index, rows, blocks;
    const int32_t *tokens, *slots, *positions;
    /* of a product: one or more matrices of the same rows, whose outputs stand side by side */
    const rounded_t *x;
    const matrix_t *matrices[3];
    int count, tiles, units;
    float *out;
    size_t stride;
} step_t;

static int mixed_size(const model_t *m) { return (m->heads + 2 * m->key_heads) * m->size; }
static int attended_size(const model_t *m) { return m->heads * m->size; }
static size_t head_keys(const model_t *m) { return (size_t)m->capacity * (size_t)m->size; }

static size_t cache_at(const model_t *m, int layer, int slot, int key_head) {
    return (((size_t)layer * (size_t)m->slots + (size_t)slot) * (size_t)m->key_heads + (size_t)key_head) * head_keys(m);
}

static void *room(size_t count, size_t each) { return aligned_new(count * each); }

static rounded_t *rounded_room(int rows, int inputs) {
    return room((size_t)rows * (size_t)(inputs / GROUP), sizeof(rounded_t));
}

workspace_t *workspace_new(const model_t *m, pool_t *pool, int rows) {
    workspace_t *w = calloc(1, sizeof *w);
    if (!w) return NULL;
    size_t count = (size_t)rows, threads = (size_t)pool_threads(pool);
    int narrow = attended_size(m) > m->hidden ? attended_size(m) : m->hidden;
    int groups = m->heads / m->key_heads;
    w->rows = rows;
    w->hidden = room(count * (size_t)m->hidden, sizeof(float));
    w->mixed = room(count * (size_t)mixed_size(m), sizeof(float));
    w->normed = room(count * (size_t)narrow, sizeof(float));
    w->more = room(count * (size_t)m->hidden, sizeof(float));
    w->x = rounded_room(rows, narrow);
    w->wide = rounded_room(rows, m->inner);
    w->scores = room(threads * QUERIES * (size_t)m->capacity, sizeof(float));
    w->pairs = room(threads * count * 2 * GROUP, sizeof(float));
    w->blocks = room(count * (size_t)m->key_heads * (size_t)groups, sizeof(query_block_t));
    if (!w->hidden || !w->mixed || !w->normed || !w->more || !w->x || !w->wide || !w->scores || !w->pairs ||
        !w->blocks) {
        workspace_free(w);
        return NULL;
    }
    return w;
}

void workspace_free(workspace_t *w) {
    if (!w) return;
    void *parts[] = {w->hidden, w->mixed, w->normed, w->more, w->x, w->wide, w->scores, w->pairs, w->blocks};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) aligned_free(parts[i]);
    free(w);
}

/* Products. */

static void product_unit(void *context, int unit, int thread) {
    (void)thread;
    const step_t *s = context;
    int from = (int)((int64_t)s->tiles * unit / s->units), to = (int)((int64_t)s->tiles * (unit + 1) / s->units);
    float *out = s->out;
    for (int i = 0, base = 0; i < s->count; i++) {
        int tiles = (s->matrices[i]->outputs + TILE - 1) / TILE;
        for (int t = from > base ? from : base; t < to && t < base + tiles; t++)
            s->kernels->tile(s->matrices[i], t - base, s->x, s->rows, out + TILE * (t - base), s->stride);
        base += tiles;
        out += TILE * tiles;
    }
}

/* Multiply the rows x by the matrices; outputs of a row stand side by side in `out`, `stride` floats a row. */
static void multiply(step_t *s, pool_t *pool, const rounded_t *x, int count, const matrix_t *const *matrices,
                     float *out, int stride) {
    s->x = x;
    s->count = count;
    s->out = out;
    s->stride = (size_t)stride;
    s->tiles = 0;
    for (int i = 0; i < count; i++) {
        s->matrices[i] = matrices[i];
        s->tiles += (matrices[i]->outputs + TILE - 1) / TILE;
    }
    int units = SPLITS * pool_threads(pool);
    s->units = units < s->tiles ? units : s->tiles;
    pool_run(pool, product_unit, s, s->units);
}

/* Two tiles of gate and up each, their product in 8 bits. */
static void gate_unit(void *context, int unit, int thread) {
    const step_t *s = context;
    const model_t *m = s->model;
    float *pairs = s->space->pairs + (size_t)thread * (size_t)s->space->rows * 2 * GROUP, gated[GROUP];
    for (int i = 0; i < 2; i++) {
        s->kernels->tile(s->layer->gate, 2 * unit + i, s->space->x, s->rows, pairs + TILE * i, 2 * GROUP);
        s->kernels->tile(s->layer->up, 2 * unit + i, s->space->x, s->rows, pairs + GROUP + TILE * i, 2 * GROUP);
    }
    for (int r = 0; r < s->rows; r++) {
        int step;
        rounded_t *block = panel_block(s->space->wide, s->rows, r, m->inner / GROUP, unit, &step);
        s->kernels->gate(pairs + 2 * GROUP * r, pairs + 2 * GROUP * r + GROUP, GROUP, gated);
        s->kernels->round(gated, 1, block, step);
    }
}

/* Rows. */

static void for_rows(step_t *s, pool_t *pool, work_t work) {
    if (s->rows > FEW_ROWS) pool_run(pool, work, s, s->rows);
    else
        for (int r = 0; r < s->rows; r++) work(s, r, 0);
}

static void embed_row(void *context, int r, int thread) {
    (void)thread;
    const step_t *s = context;
    const model_t *m = s->model;
    float *x = s->space->hidden + (size_t)r * (size_t)m->hidden;
    decode_row(m->embedding_format, m->embedding, m->hidden, s->tokens[r], x);
    if (m->embedding_scale != 1)
        for (int i = 0; i < m->hidden; i++) x[i] *= m->embedding_scale;
}

/* Round row r of `rows` for a product. */
static void round_row(const step_t *s, int rows, int r, const float *row, int inputs) {
    int step;
    rounded_t *block = panel_block(s->space->x, rows, r, inputs / GROUP, 0, &step);
    s->kernels->round(row, inputs / GROUP, block, step);
}

static void norm_row(const step_t *s, int r, const float *weight) {
    const model_t *m = s->model;
    size_t at = (size_t)r * (size_t)m->hidden;
    s->kernels->norm(s->space->hidden + at, weight, m->epsilon, m->hidden, s->space->normed + at);
    round_row(s, s->rows, r, s->space->normed + at, m->hidden);
}

static void input_norm_row(void *context, int r, int thread) {
    (void)thread;
    norm_row(context, r, ((const step_t *)context)->layer->input_norm);
}

/* Add what attention or the gated layer gave to the residual stream. */
static void add_row(const step_t *s, int r) {
    const model_t *m = s->model;
    size_t at = (size_t)r * (size_t)m->hidden;
    s->kernels->add(s->space->hidden + at, s->space->more + at, m->residual_scale, m->hidden);
}

static void inner_norm_row(void *context, int r, int thread) {
    (void)thread;
    const step_t *s = context;
    if (s->layer->out_bias)
        s->kernels->add(s->space->more + (size_t)r * (size_t)s->model->hidden, s->layer->out_bias, 1, s->model->hidden);
    add_row(s, r);
    norm_row(s, r, s->layer->inner_norm);
}

static void end_row(void *context, int r, int thread) {
    (void)thread;
    add_row(context, r);
}

/* Attention. */

static void put_key(const model_t *m, const kernels_t *k, const float *key, uint16_t *keys, int position) {
    uint16_t halves[512];
    k->put_half(key, m->size, halves);
    uint16_t *at = keys + (size_t)(position / TILE) * (size_t)m->size * TILE + position % TILE;
    for (int d = 0; d < m->size; d++) at[TILE * d] = halves[d];
}

static void put_value(const model_t *m, const kernels_t *k, const float *value, uint16_t *values, int position) {
    for (int part = 0; part < m->size / TILE; part++)
        k->put_half(value + TILE * part, TILE,
                    values + ((size_t)part * (size_t)m->capacity + (size_t)position) * TILE);
}

static void turn(const step_t *s, float *head, const float *weight, int position) {
    const model_t *m = s->model;
    int half = m->rotated / 2;
    if (weight) s->kernels->norm(head, weight, m->epsilon, m->size, head);
    s->kernels->rotate(head, m->cosine + (size_t)position * (size_t)half, m->sine + (size_t)position * (size_t)half,
                       half, m->halves);
}

/* Bias and rotate a row's queries, keys and values, and write the latter two into its slot. */
static void position_row(void *context, int r, int thread) {
    (void)thread;
    const step_t *s = context;
    const model_t *m = s->model;
    const layer_t *layer = s->layer;
    float *query = s->space->mixed + (size_t)r * (size_t)mixed_size(m);
    float *key = query + m->heads * m->size, *value = key + m->key_heads * m->size;
    if (layer->query_bias) s->kernels->add(query, layer->query_bias, 1, m->heads * m->size);
    if (layer->key_bias) s->kernels->add(key, layer->key_bias, 1, m->key_heads * m->size);
    if (layer->value_bias) s->kernels->add(value, layer->value_bias, 1, m->key_heads * m->size);
    for (int h = 0; h < m->heads; h++) turn(s, query + h * m->size, layer->query_norm, s->positions[r]);
    for (int h = 0; h < m->key_heads; h++) {
        size_t at = cache_at(m, s->index, s->slots[r], h);
        turn(s, key + h * m->size, layer->key_norm, s->positions[r]);
        put_key(m, s->kernels, key + h * m->size, m->keys + at, s->positions[r]);
        put_value(m, s->kernels, value + h * m->size, m->values + at, s->positions[r]);
    }
}

/* Cut the queries of each sequence and key head into blocks. */
static int lay_blocks(const step_t *s, query_block_t *blocks) {
    const model_t *m = s->model;
    int groups = m->heads / m->key_heads, count = 0;
    for (int row = 0, next; row < s->rows; row = next) {
        for (next = row + 1; next < s->rows && s->slots[next] == s->slots[row]; next++) {}
        for (int head = 0; head < m->key_heads; head++)
            for (int first = 0, whole = (next - row) * groups; first < whole; first += QUERIES)
                blocks[count++] = (query_block_t){row, head, first, whole - first < QUERIES ? whole - first : QUERIES};
    }
    return count;
}

static void attend_unit(void *context, int unit, int thread) {
    const step_t *s = context;
    const model_t *m = s->model;
    const query_block_t *block = s->space->blocks + unit;
    int groups = m->heads / m->key_heads;
    size_t at = cache_at(m, s->index, s->slots[block->row], block->key_head);
    attention_t call = {.count = block->count, .size = m->size, .keys = m->keys + at, .values = m->values + at,
                        .capacity = m->capacity, .scale = m->attention_scale,
                        .scores = s->space->scores + (size_t)thread * QUERIES * (size_t)m->capacity};
    for (int i = 0; i < block->count; i++) {
        int row = block->row + (block->first + i) / groups, head = block->key_head * groups + (block->first + i) % groups;
        int length = s->positions[row] + 1;
        call.query[i] = s->space->mixed + (size_t)row * (size_t)mixed_size(m) + head * m->size;
        call.out[i] = s->space->normed + (size_t)row * (size_t)attended_size(m) + head * m->size;
        call.length[i] = length;
        call.first[i] = s->layer->window && length > s->layer->window ? length - s->layer->window : 0;
    }
    s->kernels->attend(&call);
}

static void attended_row(void *context, int r, int thread) {
    (void)thread;
    const step_t *s = context;
    int size = attended_size(s->model);
    round_row(s, s->rows, r, s->space->normed + (size_t)r * (size_t)size, size);
}

/* The step. */

static void run_layer(step_t *s, pool_t *pool) {
    const model_t *m = s->model;
    const layer_t *layer = s->layer;
    workspace_t *w = s->space;
    for_rows(s, pool, input_norm_row);
    multiply(s, pool, w->x, 3, (const matrix_t *const[]){layer->query, layer->key, layer->value}, w->mixed,
             mixed_size(m));
    for_rows(s, pool, position_row);
    pool_run(pool, attend_unit, s, s->blocks);
    for_rows(s, pool, attended_row);
    multiply(s, pool, w->x, 1, &layer->out, w->more, m->hidden);
    for_rows(s, pool, inner_norm_row);
    pool_run(pool, gate_unit, s, m->inner / GROUP);
    multiply(s, pool, w->wide, 1, &layer->down, w->more, m->hidden);
    for_rows(s, pool, end_row);
}

/* Compute the logits of rows `kept` (of this pass). */
static void run_head(step_t *s, pool_t *pool, int kept_rows, const int32_t *kept, float *logits) {
    const model_t *m = s->model;
    int width = (m->head->outputs + TILE - 1) / TILE * TILE;
    for (int i = 0; i < kept_rows; i++) {
        size_t at = (size_t)i * (size_t)m->hidden;
        s->kernels->norm(s->space->hidden + (size_t)kept[i] * (size_t)m->hidden, m->final_norm, m->epsilon, m->hidden,
                         s->space->normed + at);
        round_row(s, kept_rows, i, s->space->normed + at, m->hidden);
    }
    int rows = s->rows;
    s->rows = kept_rows;
    multiply(s, pool, s->space->x, 1, &m->head, logits, width);
    s->rows = rows;
    if (m->logit_scale != 1)
        for (size_t i = 0; i < (size_t)kept_rows * (size_t)width; i++) logits[i] *= m->logit_scale;
}

void codespec_step(const model_t *model, workspace_t *workspace, pool_t *pool, const kernels_t *kernels, int rows,
                   const int32_t *tokens, const int32_t *slots, const int32_t *positions, int kept_rows,
                   const int32_t *kept, float *logits) {
    int width = (model->head->outputs + TILE - 1) / TILE * TILE;
    for (int from = 0, next_kept = 0; from < rows; from += workspace->rows) {
        int pass = rows - from < workspace->rows ? rows - from : workspace->rows;
        step_t s = {.model = model, .kernels = kernels, .space = workspace, .rows = pass, .tokens = tokens + from,
                    .slots = slots + from, .positions = positions + from};
        s.blocks = lay_blocks(&s, workspace->blocks);
        for_rows(&s, pool, embed_row);
        for (s.index = 0; s.index < model->layers; s.index++) {
            s.layer = model->layer + s.index;
            run_layer(&s, pool);
        }
        int32_t here[1024];
        int count = 0, first = next_kept;
        while (next_kept < kept_rows && kept[next_kept] < from + pass) here[count++] = kept[next_kept++] - from;
        if (count) run_head(&s, pool, count, here, logits + (size_t)first * (size_t)width);
    }
}
