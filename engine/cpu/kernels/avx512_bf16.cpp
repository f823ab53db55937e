#include "simd_avx512.h"
// The instruction set comes first.
#include "all.h"

void pillion::avx512_bf16_dense(const Dense& a) {
  dense(a);
}

void pillion::avx512_bf16_attention(const Attention& a) {
  attention(a);
}
