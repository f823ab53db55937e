#include "simd_avx512.h"
// The instruction set comes first.
#include "all.h"
#include "amx.h"
// Both use its tiles.
#include "amx_fixed.h"

void pillion::amx_dense(const Dense& a) {
  dense_on_tiles(a);
}

void pillion::amx_quantized(const Quantized& a) {
  quantized_on_tiles(a);
}
