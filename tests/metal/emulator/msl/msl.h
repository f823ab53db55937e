// The Metal Shading Language as a C++17 header: kernel text is compiled as ordinary host code, once
// for all lanes. Address spaces are words without meaning, because a lane's pointers all point into
// the host's memory.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include <atomic>
#include <limits>
#include <type_traits>

#include "../runtime/runtime.h"

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef _Float16 half;
typedef __bf16 bfloat;
typedef half float16_t;
typedef bfloat bfloat16_t;

#define __METAL__ 1
#ifndef __METAL_VERSION__
#define __METAL_VERSION__ 320
#endif
#define METAL_FUNC inline __attribute__((always_inline))
#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")
#define HUGE_VALF INFINITY
#define MAXFLOAT 3.40282346638528859811704183484516925e+38f
#define FLT_MAX MAXFLOAT
#define FLT_MIN 1.17549435082228750797e-38f
#define FLT_EPSILON 1.1920928955078125e-07f
#define M_PI_F 3.14159265358979323846f
#define M_1_PI_F 0.318309886183790671538f
#define M_SQRT1_2_F 0.707106781186547524401f
#define M_LN2_F 0.693147180559945309417f
#define M_LOG2E_F 1.44269504088896340736f

#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wuser-defined-literals"
#pragma clang diagnostic ignored "-Wreserved-user-defined-literal"
constexpr half operator""h(long double value) { return (half)value; }
constexpr bfloat operator"" bf(long double value) { return (bfloat)(float)value; }
#pragma clang diagnostic pop

namespace metal {
using std::bool_constant, std::conditional, std::conditional_t, std::decay_t, std::declval;
using std::enable_if, std::enable_if_t, std::false_type, std::integral_constant;
using std::is_arithmetic, std::is_base_of, std::is_const, std::is_convertible,
    std::is_convertible_v;
using std::is_floating_point, std::is_integral, std::is_integral_v, std::is_pointer, std::is_same;
using std::is_same_v, std::is_signed, std::is_unsigned, std::is_void, std::make_signed;
using std::make_signed_t, std::make_unsigned, std::make_unsigned_t, std::remove_const_t;
using std::remove_cv, std::remove_cv_t, std::remove_reference, std::remove_reference_t,
    std::true_type;
template <class T>
using remove_addrspace_t = T;
template <class T>
struct remove_addrspace {
  using type = T;
};

template <class T>
struct numeric_limits : std::numeric_limits<T> {};
// The standard library's know neither type: numbers by their bits.
template <class T, int kDigits, uint16_t kMax, uint16_t kMin, uint16_t kInfinity, uint16_t kNaN,
          uint16_t kEpsilon>
struct small_float_limits {
  static constexpr bool is_specialized = true, is_signed = true, is_integer = false;
  static constexpr int digits = kDigits;
  static constexpr T max() { return __builtin_bit_cast(T, kMax); }
  static constexpr T lowest() { return -max(); }
  static constexpr T min() { return __builtin_bit_cast(T, kMin); }
  static constexpr T infinity() { return __builtin_bit_cast(T, kInfinity); }
  static constexpr T quiet_NaN() { return __builtin_bit_cast(T, kNaN); }
  static constexpr T epsilon() { return __builtin_bit_cast(T, kEpsilon); }
};
template <>
struct numeric_limits<half> : small_float_limits<half, 11, 0x7bff, 0x0400, 0x7c00, 0x7e00, 0x1400> {
};
template <>
struct numeric_limits<bfloat>
    : small_float_limits<bfloat, 8, 0x7f7f, 0x0080, 0x7f80, 0x7fc0, 0x3c00> {};

template <class To, class From>
constexpr To as_type(const From& value) {
  static_assert(sizeof(To) == sizeof(From), "as_type needs types of the same size");
  return __builtin_bit_cast(To, value);
}
}  // namespace metal
using metal::as_type;

#include "vector.h"

#include "math.h"

#include "simdgroup.h"

#include "matrix.h"

#include "atomic.h"

namespace emulator {
// A `threadgroup` variable; each (type, declaration) has one block in a threadgroup.
template <class T, int kDeclaration>
inline T& threadgroup_variable(const char* name) {
  static const char key = 0;
  return *static_cast<T*>(emulator_threadgroup_block(&key, sizeof(T), name));
}
inline uint3 three(const uint32_t* values) { return uint3(values[0], values[1], values[2]); }

// A buffer as whatever the kernel's parameter is: a pointer, or a reference to its first element.
struct Buffer {
  void* memory;
  template <class T>
  operator T*() const {
    return static_cast<T*>(memory);
  }
  template <class T, class = std::enable_if_t<!std::is_pointer_v<T>>>
  operator T&() const {
    return *static_cast<T*>(memory);
  }
};
}  // namespace emulator

#define device
#define constant
#define thread
#define threadgroup
#define kernel
// A double is an error in Metal. Literals without a suffix are float there, and a compiler option
// makes them so here.
#pragma GCC poison double
