#include "simd_avx512.h"
// The instruction set comes first.
#include "all.h"
#include "amx.h"

const pillion::Kernels pillion::amx_kernels = {
    dense_on_tiles, quantized_on_tiles, gated_delta, attention, rms_norm, rotate, convolve,
    swiglu,         add,                gate,      own_convolve};

// A tile takes sixteen rows for the price of one, but has to be filled with unpacked weights first:
// for one row of a quantised matrix AVX-512 is twice as fast.
const pillion::Kernels pillion::amx_dense_kernels = {
    dense_on_tiles, quantized, gated_delta, attention, rms_norm, rotate, convolve,
    swiglu,         add,       gate,        own_convolve};
