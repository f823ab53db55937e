// The gated delta rule, one row of tokens after the other.
//
// S = g S + k (v - g S k)^T b, y = S q (Gated DeltaNet, arXiv:2412.06464). Both products with the
// old state are taken in one pass over it: y = g S q + (k q) b (v - g S k).

#pragma once

#include <math.h>

namespace {

inline float sigmoid_of(float x) {
  return 1.0f / (1.0f + expf(-x));
}

inline float softplus_of(float x) {
  return x > 0 ? x + log1pf(expf(-x)) : log1pf(expf(x));
}

template <class T>
inline const T* elements(const void* p) {
  return static_cast<const T*>(p);
}

inline float weight_at(const void* p, Type type, int i) {
  return type == Type::f32 ? elements<float>(p)[i] : as_float(elements<bf16>(p)[i]);
}

// q and k are float32 and padded with zeros to a multiple of W here.
template <class T>
void delta_step(float* state, const float* q, const float* k, const T* v, T* y, float decay,
                float strength, int key_width, int value_width) {
  Vec shared = zero();
  for (int i = 0; i < key_width; i += W) shared = fma(load(k + i), load(q + i), shared);
  const Vec key_query = all(sum_of(shared)), decays = all(decay), strengths = all(strength);
  for (int row = 0; row < value_width; row += W) {
    const int rows = value_width - row < W ? value_width - row : W;
    float* block = state + static_cast<long>(row) * key_width;
    Vec by_key[W], by_query[W];
    for (int r = 0; r < W; r++) {
      Vec of_key = zero(), of_query = zero();
      for_row<float>(r < rows ? key_width : 0, [&](int i, int n) {
        Vec old = some(block + r * key_width + i, n);
        of_key = fma(old, load(k + i), of_key);
        of_query = fma(old, load(q + i), of_query);
      });
      by_key[r] = of_key;
      by_query[r] = of_query;
    }
    Vec delta = (some(v + row, rows) - decays * sums(by_key)) * strengths;
    put_some(y + row, fma(key_query, delta, decays * sums(by_query)), rows);
    float deltas[W];
    store(deltas, delta);
    for (int r = 0; r < rows; r++) {
      float* into = block + r * key_width;
      const Vec by = all(deltas[r]);
      for_row<float>(key_width, [&](int i, int n) {
        put_some(into + i, fma(load(k + i), by, some(into + i, n) * decays), n);
      });
    }
  }
}

template <class T>
void padded(const T* x, float* into, int width) {
  for_row<T>(width, [&](int i, int n) { store(into + i, some(x + i, n)); });
}

template <class T>
void gated_delta_rows(const pillion::GatedDelta& a) {
  Scratch q(a.key_width + W), k(a.key_width + W);
  const long state_size = static_cast<long>(a.value_width) * a.key_width;
  for (int head = 0; head < a.heads; head++) {
    const int key_head = head / (a.heads / a.key_heads);
    const float rate = expf(weight_at(a.a_log, a.a_log_type, head));
    const float shift = weight_at(a.dt_bias, a.dt_bias_type, head);
    for (int t = 0; t < a.steps; t++) {
      const long key_at = (static_cast<long>(t) * a.key_heads + key_head) * a.key_width;
      const long at = static_cast<long>(t) * a.heads + head;
      padded(elements<T>(a.q) + key_at, q.data, a.key_width);
      padded(elements<T>(a.k) + key_at, k.data, a.key_width);
      const float decay = expf(-rate * softplus_of(as_float(elements<T>(a.a)[at]) + shift));
      const float strength = sigmoid_of(as_float(elements<T>(a.b)[at]));
      delta_step(a.state + head * state_size, q.data, k.data, elements<T>(a.v) + at * a.value_width,
                 static_cast<T*>(a.y) + at * a.value_width, decay, strength, a.key_width,
                 a.value_width);
    }
  }
}

void gated_delta(const pillion::GatedDelta& a) {
  a.type == Type::f32 ? gated_delta_rows<float>(a) : gated_delta_rows<bf16>(a);
}

}  // namespace
