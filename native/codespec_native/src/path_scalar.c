/* The scalar path. */
#include <math.h>
#include <string.h>

#include "kernels.h"
#include "lanes_scalar.h"
#define NAME kernels_scalar
#define STRING "scalar"
#include "kernels.inc"
