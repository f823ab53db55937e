// Vectors of 2, 3 and 4 components: conversions convert values (a cast between the compiler's own
// vectors of one size would keep the bits), components have names, and the usual swizzles work.
#pragma once

namespace metal {

template <class T, int N>
struct vec;

// A swizzle is a view of the vector that it is a member of.
template <class T, int kStored, int... kIndex>
struct swizzle {
  static constexpr int kSize = sizeof...(kIndex);
  T d[kStored];
  constexpr operator vec<T, kSize>() const { return vec<T, kSize>(d[kIndex]...); }
  constexpr swizzle& operator=(const vec<T, kSize>& value) {
    int i = 0;
    ((d[kIndex] = value.d[i++]), ...);
    return *this;
  }
};

template <class S, class T>
using if_scalar = enable_if_t<is_convertible_v<S, T> && !std::is_class_v<S>>;

#define MSL_VECTOR_MEMBERS(N)                         \
  using value_type = T;                               \
  constexpr vec() = default;                          \
  constexpr vec(const vec&) = default;                \
  vec& operator=(const vec&) = default;               \
  template <class S, class = if_scalar<S, T>>         \
  constexpr vec(S value) {                            \
    for (int i = 0; i < N; i++) d[i] = (T)value;      \
  }                                                   \
  template <class U>                                  \
  explicit constexpr vec(const vec<U, N>& other) {    \
    for (int i = 0; i < N; i++) d[i] = (T)other.d[i]; \
  }                                                   \
  constexpr T& operator[](int i) { return d[i]; }     \
  constexpr const T& operator[](int i) const { return d[i]; }

template <class T>
struct alignas(sizeof(T) * 2) vec<T, 2> {
  union {
    T d[2];
    struct {
      T x, y;
    };
    struct {
      T r, g;
    };
    swizzle<T, 2, 0, 1> xy;
    swizzle<T, 2, 1, 0> yx;
    swizzle<T, 2, 0, 0> xx;
    swizzle<T, 2, 1, 1> yy;
  };
  MSL_VECTOR_MEMBERS(2)
  constexpr vec(T a, T b) {
    d[0] = a;
    d[1] = b;
  }
};

template <class T>
struct alignas(sizeof(T) * 4) vec<T, 3> {
  union {
    T d[4];
    struct {
      T x, y, z;
    };
    struct {
      T r, g, b;
    };
    swizzle<T, 4, 0, 1> xy;
    swizzle<T, 4, 1, 2> yz;
    swizzle<T, 4, 0, 1, 2> xyz;
  };
  MSL_VECTOR_MEMBERS(3)
  constexpr vec(T a, T b, T c) {
    d[0] = a;
    d[1] = b;
    d[2] = c;
  }
  constexpr vec(vec<T, 2> p, T c) : vec(p.d[0], p.d[1], c) {}
};

template <class T>
struct alignas(sizeof(T) * 4) vec<T, 4> {
  union {
    T d[4];
    struct {
      T x, y, z, w;
    };
    struct {
      T r, g, b, a;
    };
    swizzle<T, 4, 0, 1> xy;
    swizzle<T, 4, 1, 2> yz;
    swizzle<T, 4, 2, 3> zw;
    swizzle<T, 4, 0, 1, 2> xyz;
  };
  MSL_VECTOR_MEMBERS(4)
  constexpr vec(T p, T q, T s, T t) {
    d[0] = p;
    d[1] = q;
    d[2] = s;
    d[3] = t;
  }
  constexpr vec(vec<T, 2> p, vec<T, 2> q) : vec(p.d[0], p.d[1], q.d[0], q.d[1]) {}
  constexpr vec(vec<T, 3> p, T t) : vec(p.d[0], p.d[1], p.d[2], t) {}
};

// Eight components: no names, no arithmetic beyond what is below; MSL's own documents stop at four.
template <class T>
struct alignas(sizeof(T) * 8) vec<T, 8> {
  T d[8];
  MSL_VECTOR_MEMBERS(8)
};
#undef MSL_VECTOR_MEMBERS

// Without the alignment of vec.
template <class T, int N>
struct packed_vec {
  T d[N];
  packed_vec() = default;
  constexpr packed_vec(const vec<T, N>& value) {
    for (int i = 0; i < N; i++) d[i] = value[i];
  }
  constexpr operator vec<T, N>() const {
    vec<T, N> value;
    for (int i = 0; i < N; i++) value[i] = d[i];
    return value;
  }
  constexpr T& operator[](int i) { return d[i]; }
  constexpr const T& operator[](int i) const { return d[i]; }
};

template <class S>
using if_number = enable_if_t<!std::is_class_v<S>>;

#define MSL_VECTOR_OPERATOR(op)                                 \
  template <class T, int N>                                     \
  constexpr vec<T, N> operator op(vec<T, N> a, vec<T, N> b) {   \
    for (int i = 0; i < N; i++) a.d[i] = (T)(a.d[i] op b.d[i]); \
    return a;                                                   \
  }                                                             \
  template <class T, int N, class S, class = if_number<S>>      \
  constexpr vec<T, N> operator op(vec<T, N> a, S b) {           \
    for (int i = 0; i < N; i++) a.d[i] = (T)(a.d[i] op(T) b);   \
    return a;                                                   \
  }                                                             \
  template <class T, int N, class S, class = if_number<S>>      \
  constexpr vec<T, N> operator op(S a, vec<T, N> b) {           \
    for (int i = 0; i < N; i++) b.d[i] = (T)((T)a op b.d[i]);   \
    return b;                                                   \
  }                                                             \
  template <class T, int N, class S>                            \
  constexpr vec<T, N>& operator op## = (vec<T, N> & a, S b) {   \
    a = a op b;                                                 \
    return a;                                                   \
  }
MSL_VECTOR_OPERATOR(+)
MSL_VECTOR_OPERATOR(-)
MSL_VECTOR_OPERATOR(*)
MSL_VECTOR_OPERATOR(/)
MSL_VECTOR_OPERATOR(%)
MSL_VECTOR_OPERATOR(&)
MSL_VECTOR_OPERATOR(|)
MSL_VECTOR_OPERATOR(^)
MSL_VECTOR_OPERATOR(<<)
MSL_VECTOR_OPERATOR(>>)
#undef MSL_VECTOR_OPERATOR

#define MSL_VECTOR_COMPARISON(op)                                \
  template <class T, int N>                                      \
  constexpr vec<bool, N> operator op(vec<T, N> a, vec<T, N> b) { \
    vec<bool, N> r;                                              \
    for (int i = 0; i < N; i++) r.d[i] = a.d[i] op b.d[i];       \
    return r;                                                    \
  }
MSL_VECTOR_COMPARISON(==)
MSL_VECTOR_COMPARISON(!=)
MSL_VECTOR_COMPARISON(<)
MSL_VECTOR_COMPARISON(<=)
MSL_VECTOR_COMPARISON(>)
MSL_VECTOR_COMPARISON(>=)
#undef MSL_VECTOR_COMPARISON

template <class T, int N>
constexpr vec<T, N> operator-(vec<T, N> a) {
  for (int i = 0; i < N; i++) a.d[i] = -a.d[i];
  return a;
}
template <class T, int N>
constexpr vec<T, N> operator~(vec<T, N> a) {
  for (int i = 0; i < N; i++) a.d[i] = ~a.d[i];
  return a;
}
template <class T, int N>
T dot(vec<T, N> a, vec<T, N> b) {
  T sum = a.d[0] * b.d[0];
  for (int i = 1; i < N; i++) sum += a.d[i] * b.d[i];
  return sum;
}
template <int N>
bool any(vec<bool, N> a) {
  for (int i = 0; i < N; i++) {
    if (a.d[i]) return true;
  }
  return false;
}
template <int N>
bool all(vec<bool, N> a) {
  for (int i = 0; i < N; i++) {
    if (!a.d[i]) return false;
  }
  return true;
}
}  // namespace metal

#define MSL_VECTORS(t)                           \
  typedef metal::vec<t, 2> t##2;                 \
  typedef metal::vec<t, 3> t##3;                 \
  typedef metal::vec<t, 4> t##4;                 \
  typedef metal::packed_vec<t, 2> packed_##t##2; \
  typedef metal::packed_vec<t, 3> packed_##t##3; \
  typedef metal::packed_vec<t, 4> packed_##t##4;
MSL_VECTORS(float)
MSL_VECTORS(half)
MSL_VECTORS(bfloat)
MSL_VECTORS(bool)
MSL_VECTORS(char)
MSL_VECTORS(uchar)
MSL_VECTORS(short)
MSL_VECTORS(ushort)
MSL_VECTORS(int)
MSL_VECTORS(uint)
MSL_VECTORS(long)
MSL_VECTORS(ulong)
#undef MSL_VECTORS
