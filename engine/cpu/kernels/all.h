// The kernels for whichever instruction set was included before.

#pragma once

#include "matmul.h"
// elementwise.h comes before what uses its loops.
#include "elementwise.h"
#include "fixed_point.h"
#include "attention.h"
#include "recurrence.h"
#include "choice.h"

#define PILLION_KERNELS                                                                     \
  {dense,  quantized, gated_delta, attention, rms_norm, rotate, convolve, swiglu, add, gate, \
   own_convolve, choose, best, noise_of}
