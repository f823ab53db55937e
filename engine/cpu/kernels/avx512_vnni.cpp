#include "simd_avx512.h"
// The instruction set comes first.
#include "all.h"

void pillion::avx512_vnni_quantized(const Quantized& a) {
  quantized(a);
}
