#include "simd_avx2.h"
// The instruction set comes first.
#include "all.h"

void pillion::avx2_vnni_quantized(const Quantized& a) {
  quantized(a);
}
