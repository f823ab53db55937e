#include "simd_avx2.h"
// The instruction set comes first.
#include "all.h"

const pillion::Kernels pillion::avx2_vnni_kernels = PILLION_KERNELS;
