/* The neon path. */
#include <math.h>
#include <string.h>

#include "kernels.h"
#include "lanes_neon.h"
#define NAME kernels_neon
#define STRING "neon"
#include "kernels.inc"
