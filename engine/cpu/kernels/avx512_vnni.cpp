#include "simd_avx512.h"
// The instruction set comes first.
#include "all.h"

const pillion::Kernels pillion::avx512_vnni_kernels = PILLION_KERNELS;
