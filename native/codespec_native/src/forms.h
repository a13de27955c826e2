/* Packed weights: how a matrix of a GGUF file lies in memory.

   A matrix [outputs, inputs] is cut into tiles of 16 outputs. A tile is a sequence of superblocks along the inputs; a
   superblock has a head (16 float16 scales, and 16 float16 minima if the form has minima) and one or eight groups of 32
   inputs. A group has its codes and, in superblocks of eight, the integer scales (and minima) of its sub-blocks.

   A code q stands for the weight  scale * (q - offset) - minimum.

   Codes of a group, for output o, input 4 j + i (j < 8, i < 4), in bytes 4 o + i of 64-byte rows:
     4 bits   row j / 2: the low half of the byte for even j, the high half for odd j
     5 bits   as 4 bits, then one row of bit 4: bit j of the byte
     6 bits   as 4 bits, then two rows of bits 4 and 5: bits 2 (j % 4) and 2 (j % 4) + 1 of row j / 4
     8 bits   row j, signed */
#ifndef CODESPEC_FORMS_H
#define CODESPEC_FORMS_H

#include <stddef.h>
#include <stdint.h>

enum { TILE = 16, GROUP = 32, SUPER = 256 };

typedef struct {
    int32_t bits;    /* of a code: 4, 5, 6 or 8 */
    int32_t groups;  /* of a superblock: 1 or 8 */
    int32_t parts;   /* sub-blocks of a group that have a scale each: 1 or 2 */
    int32_t minima;  /* whether sub-blocks have minima */
    int32_t offset;  /* subtracted from a code */
} form_t;

typedef struct {
    form_t form;
    int32_t outputs, inputs;
    uint8_t *tiles;
    size_t tile_bytes;
} matrix_t;

/* The formats of a GGUF tensor that are read, by their numbers there. */
enum {
    GGUF_F32 = 0, GGUF_F16 = 1, GGUF_Q4_0 = 2, GGUF_Q4_1 = 3, GGUF_Q5_0 = 6, GGUF_Q5_1 = 7, GGUF_Q8_0 = 8,
    GGUF_Q2_K = 10, GGUF_Q3_K = 11, GGUF_Q4_K = 12, GGUF_Q5_K = 13, GGUF_Q6_K = 14, GGUF_IQ4_NL = 20, GGUF_BF16 = 30
};

/* Inputs and bytes of one block of a format; false if the format is not read. */
int format_block(int format, int *inputs, int *bytes);

/* Bytes of a packed matrix's tile, of the whole matrix, and the form that a format is packed in. */
int form_of(int format, form_t *form);
size_t tile_bytes(const form_t *form, int inputs);

/* Pack tiles first…last-1 of a matrix whose rows lie in `data` as in the file. */
void pack_tiles(matrix_t *matrix, int format, const uint8_t *data, int first, int last);

/* Write row `row` of a matrix, as it lies in the file, as floats. */
void decode_row(int format, const uint8_t *data, int inputs, int64_t row, float *out);

float half_to_float(uint16_t half);
uint16_t float_to_half(float value);

#endif
