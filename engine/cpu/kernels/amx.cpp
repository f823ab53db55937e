#include "simd_avx512.h"
// The instruction set comes first.
#include "all.h"
#include "amx.h"
// Both use its tiles.
#include "amx_fixed.h"

const pillion::Kernels pillion::amx_kernels = {
    dense_on_tiles, quantized_on_tiles, gated_delta, attention, rms_norm, rotate, convolve,
    swiglu,         add,                gate,        own_convolve};
