/* The avx2 path. */
#include <math.h>
#include <string.h>

#include "kernels.h"
#include "lanes_avx2.h"
#define NAME kernels_avx2
#define STRING "avx2"
#include "kernels.inc"
