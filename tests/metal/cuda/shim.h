// Metal's words for CUDA, as far as the kernels in metal/ use them. Compiled by NVRTC with
// -default-device, so functions need no __device__. No header of CUDA's is needed.
#pragma once

typedef unsigned int uint;
typedef unsigned short ushort;
typedef unsigned char uchar;

#define device
#define constant
#define thread

// 16-bit floats that become float32 to compute with, and are rounded to even when stored.
struct half {
  unsigned short bits;
  half() = default;
  half(float value) {
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  }
  operator float() const {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
  }
};

struct bfloat {
  unsigned short bits;
  bfloat() = default;
  bfloat(float value) {
    const uint wide = __float_as_uint(value);
    const bool nan = value != value;
    bits = nan ? 0x7fc0 : (wide + 0x7fff + ((wide >> 16) & 1)) >> 16;
  }
  operator float() const {
    return __uint_as_float(static_cast<uint>(bits) << 16);
  }
};

struct Position {
  uint x, y, z;
};

#define thread_position_in_threadgroup (Position{threadIdx.x, threadIdx.y, threadIdx.z})
#define threadgroup_position_in_grid (Position{blockIdx.x, blockIdx.y, blockIdx.z})
#define threads_per_threadgroup (Position{blockDim.x, blockDim.y, blockDim.z})
#define thread_position_in_grid                                                  \
  (Position{blockIdx.x * blockDim.x + threadIdx.x, blockIdx.y * blockDim.y + threadIdx.y, \
            blockIdx.z * blockDim.z + threadIdx.z})
#define thread_index_in_threadgroup \
  (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z))
#define thread_index_in_simdgroup (thread_index_in_threadgroup % 32u)
#define simdgroup_index_in_threadgroup (thread_index_in_threadgroup / 32u)
#define simdgroups_per_threadgroup ((blockDim.x * blockDim.y * blockDim.z + 31u) / 32u)

namespace metal {

constexpr uint ALL = 0xffffffffu;

template <class T>
inline T simd_shuffle(T value, uint lane) {
  return __shfl_sync(ALL, value, lane);
}
template <class T>
inline T simd_shuffle_xor(T value, uint mask) {
  return __shfl_xor_sync(ALL, value, mask);
}
inline bool simd_any(bool value) {
  return __any_sync(ALL, value);
}
// A butterfly: one of the orders for which claims about bits are made.
inline float simd_sum(float value) {
  for (uint step = 1; step < 32; step *= 2) {
    value += simd_shuffle_xor(value, step);
  }
  return value;
}
template <class T, class U>
inline auto min(T a, U b) {
  return a < b ? a : b;
}
template <class T, class U>
inline auto max(T a, U b) {
  return a > b ? a : b;
}
namespace precise {
inline float exp2(float value) {
  return ::exp2f(value);
}
}  // namespace precise
}  // namespace metal

// A function would be ambiguous beside CUDA's own.
#define fma __fmaf_rn
