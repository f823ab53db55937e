// Functions of numbers. half and bfloat are computed in float and rounded once, as the GPU's
// library does; fast:: and precise:: are the same here, so nothing is said about the error of
// fast::.
#pragma once

namespace metal {

inline float rsqrt_float(float x) { return 1.0f / __builtin_sqrtf(x); }
inline float exp10_float(float x) { return __builtin_powf(10.0f, x); }
inline float fract_float(float x) { return x - __builtin_floorf(x); }
inline float sign_float(float x) { return x > 0 ? 1.0f : x < 0 ? -1.0f : 0.0f; }

#define MSL_UNARY(name, function)                                                   \
  template <class T, class = enable_if_t<!is_integral_v<T> && !std::is_class_v<T>>> \
  T name(T x) {                                                                     \
    return (T)function((float)x);                                                   \
  }                                                                                 \
  template <class I, class = enable_if_t<is_integral_v<I>>, class = void>           \
  float name(I x) {                                                                 \
    return function((float)x);                                                      \
  }                                                                                 \
  template <class T, int N>                                                         \
  vec<T, N> name(vec<T, N> x) {                                                     \
    for (int i = 0; i < N; i++) x.d[i] = (T)function((float)x.d[i]);                \
    return x;                                                                       \
  }
#define MSL_BINARY(name, function)                             \
  template <class T, class = enable_if_t<!std::is_class_v<T>>> \
  T name(T a, T b) {                                           \
    return (T)function((float)a, (float)b);                    \
  }
#define MSL_FUNCTIONS                       \
  MSL_UNARY(exp, __builtin_expf)            \
  MSL_UNARY(exp2, __builtin_exp2f)          \
  MSL_UNARY(exp10, exp10_float)             \
  MSL_UNARY(log, __builtin_logf)            \
  MSL_UNARY(log2, __builtin_log2f)          \
  MSL_UNARY(log10, __builtin_log10f)        \
  MSL_UNARY(sqrt, __builtin_sqrtf)          \
  MSL_UNARY(rsqrt, rsqrt_float)             \
  MSL_UNARY(sin, __builtin_sinf)            \
  MSL_UNARY(cos, __builtin_cosf)            \
  MSL_UNARY(tan, __builtin_tanf)            \
  MSL_UNARY(sinh, __builtin_sinhf)          \
  MSL_UNARY(cosh, __builtin_coshf)          \
  MSL_UNARY(tanh, __builtin_tanhf)          \
  MSL_UNARY(asin, __builtin_asinf)          \
  MSL_UNARY(acos, __builtin_acosf)          \
  MSL_UNARY(atan, __builtin_atanf)          \
  MSL_UNARY(asinh, __builtin_asinhf)        \
  MSL_UNARY(acosh, __builtin_acoshf)        \
  MSL_UNARY(atanh, __builtin_atanhf)        \
  MSL_UNARY(floor, __builtin_floorf)        \
  MSL_UNARY(ceil, __builtin_ceilf)          \
  MSL_UNARY(round, __builtin_roundf)        \
  MSL_UNARY(rint, __builtin_rintf)          \
  MSL_UNARY(trunc, __builtin_truncf)        \
  MSL_UNARY(fabs, __builtin_fabsf)          \
  MSL_UNARY(fract, fract_float)             \
  MSL_UNARY(sign, sign_float)               \
  MSL_BINARY(pow, __builtin_powf)           \
  MSL_BINARY(powr, __builtin_powf)          \
  MSL_BINARY(fmod, __builtin_fmodf)         \
  MSL_BINARY(atan2, __builtin_atan2f)       \
  MSL_BINARY(copysign, __builtin_copysignf) \
  MSL_BINARY(fmax, __builtin_fmaxf)         \
  MSL_BINARY(fmin, __builtin_fminf)         \
  template <class T>                        \
  T divide(T a, T b) {                      \
    return a / b;                           \
  }
MSL_FUNCTIONS

inline float ldexp(float a, int exponent) { return __builtin_ldexpf(a, exponent); }
inline float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
// Exact in the wider type, so rounded once.
inline half fma(half a, half b, half c) { return (half)__builtin_fma(a, b, c); }
template <class T, int N>
vec<T, N> fma(vec<T, N> a, vec<T, N> b, vec<T, N> c) {
  for (int i = 0; i < N; i++) c.d[i] = fma(a.d[i], b.d[i], c.d[i]);
  return c;
}
template <class T>
T mad(T a, T b, T c) {
  return fma(a, b, c);
}

template <class T>
constexpr bool isnan(T x) {
  return x != x;
}
template <class T>
constexpr bool isinf(T x) {
  return x == numeric_limits<T>::infinity() || x == -numeric_limits<T>::infinity();
}
template <class T>
constexpr bool isfinite(T x) {
  return !isnan(x) && !isinf(x);
}

template <class A, class B>
using common = conditional_t<is_same_v<A, B>, A, decltype(declval<A>() + declval<B>())>;
template <class A, class B, class = enable_if_t<!std::is_class_v<A> && !std::is_class_v<B>>>
constexpr common<A, B> max(A a, B b) {
  using C = common<A, B>;
  return (C)a != (C)a || (C)a < (C)b ? (C)b : (C)a;  // the number where one is NaN
}
template <class A, class B, class = enable_if_t<!std::is_class_v<A> && !std::is_class_v<B>>>
constexpr common<A, B> min(A a, B b) {
  using C = common<A, B>;
  return (C)a != (C)a || (C)b < (C)a ? (C)b : (C)a;
}
template <class T, int N>
vec<T, N> max(vec<T, N> a, vec<T, N> b) {
  for (int i = 0; i < N; i++) a.d[i] = max(a.d[i], b.d[i]);
  return a;
}
template <class T, int N>
vec<T, N> min(vec<T, N> a, vec<T, N> b) {
  for (int i = 0; i < N; i++) a.d[i] = min(a.d[i], b.d[i]);
  return a;
}
template <class T>
T max3(T a, T b, T c) {
  return max(max(a, b), c);
}
template <class T>
T min3(T a, T b, T c) {
  return min(min(a, b), c);
}
template <class T>
constexpr T abs(T a) {
  return a < (T)0 ? (T)-a : a;
}
template <class T, class L, class H>
constexpr T clamp(T x, L low, H high) {
  return x < (T)low ? (T)low : ((T)high < x ? (T)high : x);
}
template <class T>
constexpr T saturate(T x) {
  return clamp(x, (T)0, (T)1);
}
template <class T>
constexpr T select(T otherwise, T chosen, bool condition) {
  return condition ? chosen : otherwise;
}
template <class T>
constexpr T mix(T a, T b, T weight) {
  return a + (b - a) * weight;
}

inline uint popcount(uint x) { return __builtin_popcount(x); }
inline uint clz(uint x) { return x ? __builtin_clz(x) : 32; }
inline uint ctz(uint x) { return x ? __builtin_ctz(x) : 32; }
inline uint extract_bits(uint x, uint offset, uint count) {
  return count == 0 ? 0 : (x >> offset) & (count >= 32 ? ~0u : (1u << count) - 1);
}
inline uint mulhi(uint a, uint b) { return (uint)(((uint64_t)a * b) >> 32); }

#define MSL_SPACE(name) \
  namespace name {      \
  MSL_FUNCTIONS         \
  using metal::clamp;   \
  using metal::fma;     \
  using metal::max;     \
  using metal::min;     \
  }
MSL_SPACE(fast)
MSL_SPACE(precise)
#undef MSL_SPACE
#undef MSL_FUNCTIONS
#undef MSL_BINARY
#undef MSL_UNARY
}  // namespace metal
