// Sixteen floats. Everything is local to the file that includes this: the same names are compiled
// for several instruction sets.

#pragma once

#include <immintrin.h>

#include "fixed_words.h"
#include "table.h"

namespace {

using pillion::bf16;
using pillion::f16;

using Vec = __m512;
using Ints = __m512i;
constexpr int W = 16;

inline __mmask16 first(int n) {
  return static_cast<__mmask16>((1u << n) - 1);
}

inline Vec zero() {
  return _mm512_setzero_ps();
}
inline Vec all(float x) {
  return _mm512_set1_ps(x);
}
inline Vec fma(Vec a, Vec b, Vec c) {
  return _mm512_fmadd_ps(a, b, c);
}
inline Vec minimum(Vec bound, Vec x) {
  return _mm512_min_ps(bound, x);
}
inline Vec maximum(Vec bound, Vec x) {
  return _mm512_max_ps(bound, x);
}
// Zero where x is below the bound.
inline Vec unless_below(float bound, Vec x, Vec value) {
  return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, _mm512_set1_ps(bound), _CMP_NLT_UQ), value);
}
inline Vec nearest(Vec x) {
  return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
inline Ints to_ints(Vec x) {
  return _mm512_cvtps_epi32(x);
}
inline Vec to_floats(Ints x) {
  return _mm512_cvtepi32_ps(x);
}
inline Vec bits_as_floats(Ints x) {
  return _mm512_castsi512_ps(x);
}
template <int BITS>
inline Ints shifted_left(Ints x) {
  return _mm512_slli_epi32(x, BITS);
}
template <int BITS>
inline Ints shifted_right(Ints x) {
  return _mm512_srli_epi32(x, BITS);
}
inline Ints larger(Ints a, Ints b) {
  return _mm512_max_epi32(a, b);
}
// Without the sign: as an integer it is in the order of the magnitudes, infinity and NaN behind.
inline Ints magnitude_bits(Vec x) {
  return _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7fffffff));
}
inline Ints plus(Ints a, Ints b) {
  return _mm512_add_epi32(a, b);
}
inline Ints all_ints(int x) {
  return _mm512_set1_epi32(x);
}

inline Ints times(Ints a, Ints b) {
  return _mm512_mullo_epi32(a, b);
}
inline Ints unlike(Ints a, Ints b) {
  return _mm512_xor_si512(a, b);
}
inline Ints floats_as_bits(Vec x) {
  return _mm512_castps_si512(x);
}
// Lanes where x is the bound or more, as bits; a NaN never is.
inline unsigned at_least(Vec x, Vec bound) {
  return _mm512_cmp_ps_mask(x, bound, _CMP_GE_OQ);
}

inline Vec widened(__m256i x, bf16) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
}
inline Vec widened(__m256i x, f16) {
  return _mm512_cvtph_ps(x);
}

inline Vec load(const float* p) {
  return _mm512_loadu_ps(p);
}
inline Vec load(const float* p, int n) {
  return _mm512_maskz_loadu_ps(first(n), p);
}
template <class T>
inline Vec load(const T* p) {
  return widened(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)), T{});
}
template <class T>
inline Vec load(const T* p, int n) {
  return widened(_mm256_maskz_loadu_epi16(first(n), p), T{});
}
inline Ints load_words(const std::uint32_t* p) {
  return _mm512_loadu_si512(p);
}

// Round to nearest even; a NaN stays one.
inline __m256i narrowed(Vec x) {
  Ints bits = _mm512_castps_si512(x);
  Ints odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  Ints rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  rounded = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000));
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
}
inline void store(int* p, Ints x) {
  _mm512_storeu_si512(p, x);
}
inline void store(float* p, Vec x) {
  _mm512_storeu_ps(p, x);
}
inline void store(float* p, Vec x, int n) {
  _mm512_mask_storeu_ps(p, first(n), x);
}
inline void store(bf16* p, Vec x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrowed(x));
}
inline void store(bf16* p, Vec x, int n) {
  _mm256_mask_storeu_epi16(p, first(n), narrowed(x));
}

// The sums of W vectors, in the order of the vectors. Each is added up in the same order.
inline Vec sums(const Vec* v) {
  Vec pairs[8], fours[4];
  for (int i = 0; i < 8; i++) {
    pairs[i] = _mm512_unpacklo_ps(v[2 * i], v[2 * i + 1]) +
               _mm512_unpackhi_ps(v[2 * i], v[2 * i + 1]);
  }
  for (int i = 0; i < 4; i++) {
    __m512d a = _mm512_castps_pd(pairs[2 * i]), b = _mm512_castps_pd(pairs[2 * i + 1]);
    fours[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b)) +
               _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
  }
  Vec low = _mm512_shuffle_f32x4(fours[0], fours[1], 0x88) +
            _mm512_shuffle_f32x4(fours[0], fours[1], 0xdd);
  Vec high = _mm512_shuffle_f32x4(fours[2], fours[3], 0x88) +
             _mm512_shuffle_f32x4(fours[2], fours[3], 0xdd);
  return _mm512_shuffle_f32x4(low, high, 0x88) + _mm512_shuffle_f32x4(low, high, 0xdd);
}

// Elements of a row, ready to be multiplied with those of another.
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

#ifdef __AVX512BF16__
template <>
struct Step<bf16> {
  static constexpr int count = 2 * W;
  Ints value;
  static Step of(const bf16* p) {
    return {_mm512_loadu_si512(p)};
  }
  static Step of(const bf16* p, int n) {
    return {_mm512_maskz_loadu_epi16(static_cast<__mmask32>((1ull << n) - 1), p)};
  }
  static Vec add(Vec sum, const Step& a, const Step& b) {
    return _mm512_dpbf16_ps(sum, (__m512bh)a.value, (__m512bh)b.value);
  }
};
#endif

// Four weights, unsigned bytes, in each lane.
#ifdef __AVX512VNNI__
struct Four {
  Ints bytes;
  explicit Four(Ints b) : bytes(b) {}
};

// In each lane a sum of such weights times numbers in fixed point: high and low bytes apart.
struct Product : ByteWords {
  Ints high = _mm512_setzero_si512(), low = _mm512_setzero_si512();
  void add(const Four& w, std::uint32_t first, std::uint32_t second) {
    high = _mm512_dpbusd_epi32(high, w.bytes, all_ints(static_cast<int>(first)));
    low = _mm512_dpbusd_epi32(low, w.bytes, all_ints(static_cast<int>(second)));
  }
  Ints sum() const {
    return plus(shifted_left<8>(high), low);
  }
};
#else
struct Four {
  Ints even, odd;
  explicit Four(Ints b)
      : even(b & all_ints(0x00ff00ff)), odd(shifted_right<8>(b) & all_ints(0x00ff00ff)) {}
};

struct Product : PairWords {
  Ints total = _mm512_setzero_si512();
  void add(const Four& w, std::uint32_t first, std::uint32_t second) {
    total = plus(total, _mm512_madd_epi16(w.even, all_ints(static_cast<int>(first))));
    total = plus(total, _mm512_madd_epi16(w.odd, all_ints(static_cast<int>(second))));
  }
  Ints sum() const {
    return total;
  }
};
#endif

}  // namespace
