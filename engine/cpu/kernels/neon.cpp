#include "simd_neon.h"
// The instruction set comes first.
#include "all.h"

const pillion::Kernels pillion::neon_kernels = PILLION_KERNELS;
