#include "simd_avx512.h"
// The instruction set comes first.
#include "all.h"

const pillion::Kernels pillion::avx512_bf16_kernels = PILLION_KERNELS;
