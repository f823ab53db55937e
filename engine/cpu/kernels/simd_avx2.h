// Eight floats; see simd_avx512.h, which has the same functions.

#pragma once

#include <immintrin.h>

#include "fixed_words.h"
#include "table.h"

namespace {

using pillion::bf16;
using pillion::f16;

using Vec = __m256;
using Ints = __m256i;
constexpr int W = 8;

inline Ints first(int n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

inline Vec zero() {
  return _mm256_setzero_ps();
}
inline Vec all(float x) {
  return _mm256_set1_ps(x);
}
inline Vec fma(Vec a, Vec b, Vec c) {
  return _mm256_fmadd_ps(a, b, c);
}
inline Vec minimum(Vec bound, Vec x) {
  return _mm256_min_ps(bound, x);
}
inline Vec maximum(Vec bound, Vec x) {
  return _mm256_max_ps(bound, x);
}
inline Vec unless_below(float bound, Vec x, Vec value) {
  return _mm256_and_ps(_mm256_cmp_ps(x, _mm256_set1_ps(bound), _CMP_NLT_UQ), value);
}
inline Vec nearest(Vec x) {
  return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
inline Ints to_ints(Vec x) {
  return _mm256_cvtps_epi32(x);
}
inline Vec to_floats(Ints x) {
  return _mm256_cvtepi32_ps(x);
}
inline Vec bits_as_floats(Ints x) {
  return _mm256_castsi256_ps(x);
}
template <int BITS>
inline Ints shifted_left(Ints x) {
  return _mm256_slli_epi32(x, BITS);
}
template <int BITS>
inline Ints shifted_right(Ints x) {
  return _mm256_srli_epi32(x, BITS);
}
inline Ints larger(Ints a, Ints b) {
  return _mm256_max_epi32(a, b);
}
inline Ints magnitude_bits(Vec x) {
  return _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0x7fffffff));
}
inline Ints plus(Ints a, Ints b) {
  return _mm256_add_epi32(a, b);
}
inline Ints all_ints(int x) {
  return _mm256_set1_epi32(x);
}

inline Ints times(Ints a, Ints b) {
  return _mm256_mullo_epi32(a, b);
}
inline Ints unlike(Ints a, Ints b) {
  return _mm256_xor_si256(a, b);
}
inline Ints floats_as_bits(Vec x) {
  return _mm256_castps_si256(x);
}
inline unsigned at_least(Vec x, Vec bound) {
  return static_cast<unsigned>(_mm256_movemask_ps(_mm256_cmp_ps(x, bound, _CMP_GE_OQ)));
}

inline Vec widened(__m128i x, bf16) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16));
}
inline Vec widened(__m128i x, f16) {
  return _mm256_cvtph_ps(x);
}

inline Vec load(const float* p) {
  return _mm256_loadu_ps(p);
}
inline Vec load(const float* p, int n) {
  return _mm256_maskload_ps(p, first(n));
}
template <class T>
inline Vec load(const T* p) {
  return widened(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)), T{});
}
template <class T>
inline Vec load(const T* p, int n) {
  alignas(16) T some[W] = {};
  for (int i = 0; i < n; i++) some[i] = p[i];
  return widened(_mm_load_si128(reinterpret_cast<const __m128i*>(some)), T{});
}
inline Ints load_words(const std::uint32_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const Ints*>(p));
}

inline __m128i narrowed(Vec x) {
  Ints bits = _mm256_castps_si256(x);
  Ints odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  Ints rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  Ints quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  Ints nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  rounded = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
  Ints packed = _mm256_packus_epi32(rounded, rounded);
  return _mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08));
}
inline void store(int* p, Ints x) {
  _mm256_storeu_si256(reinterpret_cast<Ints*>(p), x);
}
inline void store(float* p, Vec x) {
  _mm256_storeu_ps(p, x);
}
inline void store(float* p, Vec x, int n) {
  _mm256_maskstore_ps(p, first(n), x);
}
inline void store(bf16* p, Vec x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), narrowed(x));
}
inline void store(bf16* p, Vec x, int n) {
  alignas(16) bf16 some[W];
  _mm_store_si128(reinterpret_cast<__m128i*>(some), narrowed(x));
  for (int i = 0; i < n; i++) p[i] = some[i];
}

inline Vec sums(const Vec* v) {
  Vec pairs[4], fours[2];
  for (int i = 0; i < 4; i++) {
    pairs[i] = _mm256_unpacklo_ps(v[2 * i], v[2 * i + 1]) +
               _mm256_unpackhi_ps(v[2 * i], v[2 * i + 1]);
  }
  for (int i = 0; i < 2; i++) {
    __m256d a = _mm256_castps_pd(pairs[2 * i]), b = _mm256_castps_pd(pairs[2 * i + 1]);
    fours[i] = _mm256_castpd_ps(_mm256_unpacklo_pd(a, b)) +
               _mm256_castpd_ps(_mm256_unpackhi_pd(a, b));
  }
  return _mm256_permute2f128_ps(fours[0], fours[1], 0x20) +
         _mm256_permute2f128_ps(fours[0], fours[1], 0x31);
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

#ifdef __AVXVNNI__
struct Four {
  Ints bytes;
  explicit Four(Ints b) : bytes(b) {}
};

struct Product : ByteWords {
  Ints high = _mm256_setzero_si256(), low = _mm256_setzero_si256();
  void add(const Four& w, std::uint32_t first, std::uint32_t second) {
    high = _mm256_dpbusd_avx_epi32(high, w.bytes, all_ints(static_cast<int>(first)));
    low = _mm256_dpbusd_avx_epi32(low, w.bytes, all_ints(static_cast<int>(second)));
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
  Ints total = _mm256_setzero_si256();
  void add(const Four& w, std::uint32_t first, std::uint32_t second) {
    total = plus(total, _mm256_madd_epi16(w.even, all_ints(static_cast<int>(first))));
    total = plus(total, _mm256_madd_epi16(w.odd, all_ints(static_cast<int>(second))));
  }
  Ints sum() const {
    return total;
  }
};
#endif

}  // namespace
