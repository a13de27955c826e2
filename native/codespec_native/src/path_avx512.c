/* The avx512 path. */
#include <math.h>
#include <string.h>

#include "kernels.h"
#include "lanes_avx512.h"
#define NAME kernels_avx512
#define STRING "avx512"
#include "kernels.inc"
