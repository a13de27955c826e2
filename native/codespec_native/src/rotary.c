/* Tables of cosines and sines, with the same bits everywhere: no library function is asked, whose last bit may differ. */
#include "rotary.h"

/* ln x by its exponent and the series of 2 artanh((m - 1) / (m + 1)). */
static double logarithm(double x) {
    int exponent = 0;
    while (x >= 1.5) { x /= 2; exponent++; }
    while (x < 0.75) { x *= 2; exponent--; }
    double z = (x - 1) / (x + 1), square = z * z, sum = 0;
    for (int n = 41; n > 0; n -= 2) sum = sum * square + 1.0 / n;
    return 2 * z * sum + exponent * 0.69314718055994530942;
}

static double exponential(double x) {
    int halvings = 0;
    while (x > 0.25 || x < -0.25) { x /= 2; halvings++; }
    double sum = 1;
    for (int n = 18; n > 0; n--) sum = 1 + sum * x / n;
    while (halvings--) sum *= sum;
    return sum;
}

/* Cosine and sine, for 0 <= x < 2^28: the angle is reduced by pi / 2 in three parts, then Taylor's series. */
static void turn(double x, double *cosine, double *sine) {
    int64_t quarters = (int64_t)(x * 0.63661977236758134308 + 0.5);
    double n = (double)quarters;
    x = ((x - n * 1.57079632673412561417) - n * 6.07710050630396597660e-11) - n * 2.02226624879595063154e-21;
    double square = x * x, c = 1, s = 1;
    for (int k = 18; k > 0; k -= 2) c = 1 - c * square / (k * (k - 1));
    for (int k = 19; k > 1; k -= 2) s = 1 - s * square / (k * (k - 1));
    s *= x;
    switch (quarters & 3) {
    case 0: *cosine = c; *sine = s; break;
    case 1: *cosine = -s; *sine = c; break;
    case 2: *cosine = -c; *sine = -s; break;
    default: *cosine = s; *sine = -c;
    }
}

void codespec_rotary(double base, double factor, const float *factors, int rotated, int positions, float *cosine,
                     float *sine) {
    int half = rotated / 2;
    for (int i = 0; i < half; i++) {
        double rate = exponential(-2.0 * i / rotated * logarithm(base)) / factor / (factors ? (double)factors[i] : 1);
        for (int position = 0; position < positions; position++) {
            double c, s;
            turn(position * rate, &c, &s);
            cosine[(size_t)position * (size_t)half + (size_t)i] = (float)c;
            sine[(size_t)position * (size_t)half + (size_t)i] = (float)s;
        }
    }
}
