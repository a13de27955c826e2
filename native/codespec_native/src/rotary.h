#ifndef CODESPEC_ROTARY_H
#define CODESPEC_ROTARY_H

#include <stddef.h>
#include <stdint.h>

/* Fill [positions, rotated / 2] with the cosines and sines of position * base^(-2 i / rotated) / factor / factors[i]. */
void codespec_rotary(double base, double factor, const float *factors, int rotated, int positions, float *cosine,
                     float *sine);

#endif
