// Four floats, for 64-bit Arm; see simd_avx512.h, which has the same functions.

#pragma once

#include <arm_neon.h>

#include "fixed_words.h"
#include "table.h"

namespace {

using pillion::bf16;
using pillion::f16;

using Vec = float32x4_t;
using Ints = int32x4_t;
constexpr int W = 4;

inline Vec zero() {
  return vdupq_n_f32(0.0f);
}
inline Vec all(float x) {
  return vdupq_n_f32(x);
}
inline Vec fma(Vec a, Vec b, Vec c) {
  return vfmaq_f32(c, a, b);
}
inline Vec minimum(Vec bound, Vec x) {
  return vminq_f32(bound, x);
}
inline Vec maximum(Vec bound, Vec x) {
  return vmaxq_f32(bound, x);
}
inline Vec unless_below(float bound, Vec x, Vec value) {
  const uint32x4_t below = vcltq_f32(x, vdupq_n_f32(bound));
  return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(value), below));
}
inline Vec nearest(Vec x) {
  return vrndnq_f32(x);
}
inline Ints to_ints(Vec x) {
  return vcvtnq_s32_f32(x);
}
inline Vec to_floats(Ints x) {
  return vcvtq_f32_s32(x);
}
inline Vec bits_as_floats(Ints x) {
  return vreinterpretq_f32_s32(x);
}
template <int BITS>
inline Ints shifted_left(Ints x) {
  return vshlq_n_s32(x, BITS);
}
template <int BITS>
inline Ints shifted_right(Ints x) {
  return vreinterpretq_s32_u32(vshrq_n_u32(vreinterpretq_u32_s32(x), BITS));
}
inline Ints larger(Ints a, Ints b) {
  return vmaxq_s32(a, b);
}
inline Ints magnitude_bits(Vec x) {
  return vreinterpretq_s32_f32(vabsq_f32(x));
}
inline Ints plus(Ints a, Ints b) {
  return vaddq_s32(a, b);
}
inline Ints all_ints(int x) {
  return vdupq_n_s32(x);
}

inline Ints times(Ints a, Ints b) {
  return vmulq_s32(a, b);
}
inline Ints unlike(Ints a, Ints b) {
  return veorq_s32(a, b);
}
inline Ints floats_as_bits(Vec x) {
  return vreinterpretq_s32_f32(x);
}
inline unsigned at_least(Vec x, Vec bound) {
  const uint32x4_t bits = {1, 2, 4, 8};
  return vaddvq_u32(vandq_u32(vcgeq_f32(x, bound), bits));
}

inline Vec widened(uint16x4_t x, bf16) {
  return vreinterpretq_f32_u32(vshll_n_u16(x, 16));
}
inline Vec widened(uint16x4_t x, f16) {
  return vcvt_f32_f16(vreinterpret_f16_u16(x));
}

inline Vec load(const float* p) {
  return vld1q_f32(p);
}
inline Vec load(const float* p, int n) {
  float some[W] = {};
  for (int i = 0; i < n; i++) some[i] = p[i];
  return vld1q_f32(some);
}
template <class T>
inline Vec load(const T* p) {
  return widened(vld1_u16(&p->bits), T{});
}
template <class T>
inline Vec load(const T* p, int n) {
  std::uint16_t some[W] = {};
  for (int i = 0; i < n; i++) some[i] = p[i].bits;
  return widened(vld1_u16(some), T{});
}
inline Ints load_words(const std::uint32_t* p) {
  return vreinterpretq_s32_u32(vld1q_u32(p));
}

inline uint16x4_t narrowed(Vec x) {
  const uint32x4_t bits = vreinterpretq_u32_f32(x);
  const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
  const uint32x4_t rounded = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
  const uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(0x400000));
  return vshrn_n_u32(vbslq_u32(vceqq_f32(x, x), rounded, quiet), 16);
}
inline void store(int* p, Ints x) {
  vst1q_s32(p, x);
}
inline void store(float* p, Vec x) {
  vst1q_f32(p, x);
}
inline void store(float* p, Vec x, int n) {
  float some[W];
  vst1q_f32(some, x);
  for (int i = 0; i < n; i++) p[i] = some[i];
}
inline void store(bf16* p, Vec x) {
  vst1_u16(&p->bits, narrowed(x));
}
inline void store(bf16* p, Vec x, int n) {
  std::uint16_t some[W];
  vst1_u16(some, narrowed(x));
  for (int i = 0; i < n; i++) p[i].bits = some[i];
}

inline Vec sums(const Vec* v) {
  return vpaddq_f32(vpaddq_f32(v[0], v[1]), vpaddq_f32(v[2], v[3]));
}

template <class T>
struct Step {
  static constexpr int count = W;
  Vec value;
  static Step of(const T* p) {
    return {load(p)};
  }
  static Step of(const T* p, int n) {
    return {load(p, n)};
  }
  static Vec add(Vec sum, const Step& a, const Step& b) {
    return fma(a.value, b.value, sum);
  }
};

struct Four {
  int16x8_t even, odd;
  explicit Four(Ints b)
      : even(vreinterpretq_s16_s32(b & all_ints(0x00ff00ff))),
        odd(vreinterpretq_s16_s32(shifted_right<8>(b) & all_ints(0x00ff00ff))) {}
};

// Two lanes hold what belongs to one row, until the end.
struct Product : PairWords {
  int32x4_t low = vdupq_n_s32(0), high = vdupq_n_s32(0);
  void add(const Four& w, std::uint32_t first, std::uint32_t second) {
    const int16x8_t one = vreinterpretq_s16_u32(vdupq_n_u32(first)),
                    other = vreinterpretq_s16_u32(vdupq_n_u32(second));
    low = vmlal_s16(low, vget_low_s16(w.even), vget_low_s16(one));
    high = vmlal_high_s16(high, w.even, one);
    low = vmlal_s16(low, vget_low_s16(w.odd), vget_low_s16(other));
    high = vmlal_high_s16(high, w.odd, other);
  }
  Ints sum() const {
    return vpaddq_s32(low, high);
  }
};

}  // namespace
