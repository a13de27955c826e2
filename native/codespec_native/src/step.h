/* A forward of a Llama-shaped model over rows of several sequences: norms, products, rotary, attention, gate, head. */
#ifndef CODESPEC_STEP_H
#define CODESPEC_STEP_H

#include "kernels.h"
#include "threads.h"

typedef struct {
    const float *input_norm, *inner_norm;         /* [hidden] */
    const float *query_norm, *key_norm;           /* [size], or NULL */
    const float *query_bias, *key_bias, *value_bias, *out_bias; /* or NULL */
    const matrix_t *query, *key, *value, *out, *gate, *up, *down;
    int32_t window;                               /* keys that a row attends to; 0: all */
} layer_t;

typedef struct {
    int32_t layers, hidden, heads, key_heads, size, inner;
    int32_t rotated;  /* numbers of a head that are rotated */
    int32_t halves;   /* whether they are paired as (i, i + rotated / 2) */
    int32_t slots, capacity; /* of the cache; a capacity is a multiple of 16 */
    int32_t embedding_format;
    float epsilon, embedding_scale, residual_scale, attention_scale, logit_scale;
    const uint8_t *embedding; /* [vocabulary, hidden] as in the file */
    const float *final_norm;
    const float *cosine, *sine; /* [capacity, rotated / 2] */
    const matrix_t *head;
    const layer_t *layer;
    uint16_t *keys, *values; /* [layers, slots, key_heads, capacity * size], in the blocks of attention_t */
} model_t;

typedef struct workspace workspace_t;

/* Memory for steps of up to `rows` rows at a time; more are computed in several passes. */
workspace_t *workspace_new(const model_t *model, pool_t *pool, int rows);
void workspace_free(workspace_t *workspace);

/* Compute `rows` rows (token, slot and position of each; the rows of a sequence are neighbours, in order), write their
   keys and values, and write logits [kept, outputs of the head rounded up to 16] of the rows named by `kept`, in order. */
void codespec_step(const model_t *model, workspace_t *workspace, pool_t *pool, const kernels_t *kernels, int rows,
                   const int32_t *tokens, const int32_t *slots, const int32_t *positions, int kept_rows,
                   const int32_t *kept, float *logits);

#endif
