#!/usr/bin/env bash
# SIMDe's portable fused multiply-add rounds twice.
#
# Package: Debian's libsimde-dev 0.7.4~rc2-2 (headers only), compiled by gcc for plain x86-64.
# Expected: `_mm256_fmadd_ps` and `_mm512_fmadd_ps` are "fused" in Intel's documents: one rounding. An emulation for
# processors without the instruction can keep that with C's fmaf.
# Seen: without native FMA both compute a product, round it, and add. Code whose results must have the same bits with and
# without the instruction (emulated tests of AVX-512 kernels, say) differs, with no warning; the rest of the emulation is
# exact, so it looks as if the code under test were wrong.
# Exit code 0: as seen; 1: changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
apt-get download -qq libsimde-dev=0.7.4~rc2-2 2>/dev/null
dpkg -x libsimde-dev_*.deb simde
cat >check.c <<'C'
#define SIMDE_NO_NATIVE
#define SIMDE_ENABLE_NATIVE_ALIASES
#include <math.h>
#include <simde/x86/avx512.h>
#include <simde/x86/fma.h>
#include <stdio.h>
int main(void) {
    volatile float a = 1.0f + 0x1p-12f, c = -(1.0f + 0x1p-11f); /* a * a = 1 + 2^-11 + 2^-24, whose last bit needs 25 */
    float narrow[8], wide[16];
    _mm256_storeu_ps(narrow, _mm256_fmadd_ps(_mm256_set1_ps(a), _mm256_set1_ps(a), _mm256_set1_ps(c)));
    _mm512_storeu_ps(wide, _mm512_fmadd_ps(_mm512_set1_ps(a), _mm512_set1_ps(a), _mm512_set1_ps(c)));
    printf("fmaf %a, 256 bits %a, 512 bits %a\n", fmaf(a, a, c), narrow[0], wide[0]);
    return !(fmaf(a, a, c) == 0x1p-24f && narrow[0] == 0 && wide[0] == 0);
}
C
gcc -std=gnu11 -O1 -ffp-contract=off -Isimde/usr/include check.c -o check -lm
if ./check; then echo "as seen: the emulated multiply-add rounds twice"; else echo "changed" >&2; exit 1; fi
