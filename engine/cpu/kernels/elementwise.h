// What is computed row by row or element by element: norms, rotations, the short convolution.

#pragma once

namespace {

// exp(x) to about 2 units in the last place (Cephes' expf: reduction by ln 2, degree 6).
// It ends at the largest power of 2 of float32, and is zero below the smallest; a NaN stays one.
inline Vec exponential(Vec exponent) {
  constexpr float LOWEST = -87.3365478515625f;
  Vec x = minimum(all(88.3762626647949f), maximum(all(LOWEST), exponent));
  Vec n = nearest(x * all(1.44269504088896341f));
  Vec r = fma(n, all(-0.693359375f), x);
  r = fma(n, all(2.12194440e-4f), r);
  Vec p = all(1.9875691500e-4f);
  p = fma(p, r, all(1.3981999507e-3f));
  p = fma(p, r, all(8.3334519073e-3f));
  p = fma(p, r, all(4.1665795894e-2f));
  p = fma(p, r, all(1.6666665459e-1f));
  p = fma(p, r, all(5.0000001201e-1f));
  p = fma(p, r * r, r + all(1.0f));
  p = p * bits_as_floats(shifted_left<23>(plus(to_ints(n), all_ints(127))));
  return unless_below(LOWEST, exponent, p);
}

inline Vec silu(Vec x) {
  return x / (all(1.0f) + exponential(zero() - x));
}

template <class T, class Body>
inline void for_row(int width, Body body) {
  int i = 0;
  for (; i + W <= width; i += W) body(i, W);
  if (i < width) body(i, width - i);
}

template <class T>
inline Vec some(const T* p, int n) {
  return n == W ? load(p) : load(p, n);
}

template <class T>
inline void put_some(T* p, Vec x, int n) {
  n == W ? store(p, x) : store(p, x, n);
}

inline float sum_of(Vec x) {
  Vec rows[W] = {x};
  float sum[W];
  store(sum, sums(rows));
  return sum[0];
}

template <class T>
void rms_norm_rows(const pillion::RmsNorm& a) {
  const T *weight = static_cast<const T*>(a.weight), *gates = static_cast<const T*>(a.gate);
  for (int row = 0; row < a.rows; row++) {
    const long at = static_cast<long>(row) * a.width;
    const T *x = static_cast<const T*>(a.x) + at, *gate = gates != nullptr ? gates + at : nullptr;
    T* y = static_cast<T*>(a.y) + at;
    Vec squares = zero();
    for_row<T>(a.width, [&](int i, int n) {
      Vec value = some(x + i, n);
      squares = fma(value, value, squares);
    });
    const float mean = sum_of(squares) / static_cast<float>(a.width);
    const Vec factor = all(a.factor / __builtin_sqrtf(mean + a.eps));
    for_row<T>(a.width, [&](int i, int n) {
      Vec value = some(x + i, n) * factor;
      if (weight != nullptr) value = value * some(weight + i, n);
      if (gate != nullptr) value = value * silu(some(gate + i, n));
      put_some(y + i, value, n);
    });
  }
}

void rms_norm(const pillion::RmsNorm& a) {
  a.type == Type::f32 ? rms_norm_rows<float>(a) : rms_norm_rows<bf16>(a);
}

template <class T>
void rotate_row(const pillion::Rotate& a) {
  const T* x = static_cast<const T*>(a.x);
  T* y = static_cast<T*>(a.y);
  const int half = a.dims / 2;
  for_row<T>(half, [&](int i, int n) {
    Vec low = some(x + i, n), high = some(x + half + i, n);
    Vec cosine = some(a.cosines + i, n), sine = some(a.sines + i, n);
    put_some(y + i, fma(low, cosine, zero() - high * sine), n);
    put_some(y + half + i, fma(low, sine, high * cosine), n);
  });
  for (int i = a.dims; i < a.width; i++) y[i] = x[i];
}

void rotate(const pillion::Rotate& a) {
  a.type == Type::f32 ? rotate_row<float>(a) : rotate_row<bf16>(a);
}

template <class T>
void convolve_rows(const pillion::Convolve& a) {
  for (int t = 0; t < a.steps; t++) {
    const T* x = static_cast<const T*>(a.x) + static_cast<long>(t) * a.channels;
    T* y = static_cast<T*>(a.y) + static_cast<long>(t) * a.channels;
    for_row<T>(a.channels, [&](int c, int n) {
      Vec sum = zero();
      for (int i = 0; i < a.taps; i++) {
        const long at = static_cast<long>(i) * a.channels + c;
        sum = fma(some(x + at, n), some(a.w + at, n), sum);
      }
      put_some(y + c, a.silu ? silu(sum) : sum, n);
    });
  }
}

void convolve(const pillion::Convolve& a) {
  a.type == Type::f32 ? convolve_rows<float>(a) : convolve_rows<bf16>(a);
}

template <class T>
void own_convolve_rows(const pillion::OwnConvolve& a) {
  const int groups = a.channels / a.group;
  const T *base = static_cast<const T*>(a.base), *own = static_cast<const T*>(a.own);
  for (int t = 0; t < a.steps; t++) {
    const int taps = t + 1 < a.taps ? t + 1 : a.taps;
    for (int g = 0; g < groups; g++) {
      for_row<T>(a.group, [&](int i, int n) {
        const long c = static_cast<long>(g) * a.group + i;
        Vec sum = zero();
        for (int tap = 0; tap < taps; tap++) {
          const Vec shared = all(as_float(own[t * a.own_pitch + tap * groups + g]));
          const Vec weight = some(base + static_cast<long>(tap) * a.channels + c, n) + shared;
          const T* row = static_cast<const T*>(a.x) + static_cast<long>(t - tap) * a.channels;
          sum = fma(weight, some(row + c, n), sum);
        }
        put_some(static_cast<T*>(a.y) + static_cast<long>(t) * a.channels + c, sum, n);
      });
    }
  }
}

void own_convolve(const pillion::OwnConvolve& a) {
  a.type == Type::f32 ? own_convolve_rows<float>(a) : own_convolve_rows<bf16>(a);
}

template <class T>
void swiglu_row(const pillion::Swiglu& a) {
  const T *gate = static_cast<const T*>(a.gate), *x = static_cast<const T*>(a.x);
  T* y = static_cast<T*>(a.y);
  for_row<T>(static_cast<int>(a.count), [&](int i, int n) {
    put_some(y + i, silu(some(gate + i, n)) * some(x + i, n), n);
  });
}

template <class T, class Body>
void each_pair(const pillion::Pair& pair, Body body) {
  const T *a = static_cast<const T*>(pair.a), *b = static_cast<const T*>(pair.b);
  T* y = static_cast<T*>(pair.y);
  for_row<T>(static_cast<int>(pair.count), [&](int i, int n) {
    put_some(y + i, body(some(a + i, n), some(b + i, n)), n);
  });
}

void add(const pillion::Pair& pair) {
  const auto sum = [](Vec a, Vec b) { return a + b; };
  pair.type == Type::f32 ? each_pair<float>(pair, sum) : each_pair<bf16>(pair, sum);
}

void gate(const pillion::Pair& pair) {
  const auto gated = [](Vec a, Vec b) { return b / (all(1.0f) + exponential(zero() - a)); };
  pair.type == Type::f32 ? each_pair<float>(pair, gated) : each_pair<bf16>(pair, gated);
}

void swiglu(const pillion::Swiglu& a) {
  a.type == Type::f32 ? swiglu_row<float>(a) : swiglu_row<bf16>(a);
}

}  // namespace
