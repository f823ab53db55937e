// What one instruction set offers: plain pointers in, plain pointers out, one thread.
//
// Every function computes each row of its result in an order that depends on the length of that
// row only, never on how many rows there are: a row has the same bits in a forward of one row and
// of any number. Nothing here is aligned and nothing may be read past a row's end.

#pragma once

#include <cstdint>

namespace pillion {

struct bf16 {
  std::uint16_t bits;
};
struct f16 {
  std::uint16_t bits;
};

enum class Type { f32, bf16, f16 };

// Rows of one matrix, `pitch` elements apart; the elements of a row lie next to each other.
struct Matrix {
  const void* data;
  long pitch;
};

// y[m, n] = sum over k of x[m, k] * w[n, k]; x, w and y in `type`.
struct Dense {
  Type type;
  Matrix x, w;
  void* y;
  int rows, depth, width;
};

// Of a matrix (width, depth) of affine weights: q * scale + bias, `group` weights to a scale, where
// they lie is in packing.h.
struct Packing {
  static constexpr int ROWS = 16;  // of a block
  Type scale_type;
  int bits, group, depth, width;

  int groups() const {
    return depth / group;
  }
  int group_words() const {
    return group * bits / 32;
  }
  long item() const {
    return scale_type == Type::f32 ? 4 : 2;
  }
  long group_bytes() const {
    return ROWS * (group_words() * 4 + 2 * item());
  }
  long block_bytes() const {
    return groups() * group_bytes();
  }
  long bytes() const {
    return (width + ROWS - 1) / ROWS * block_bytes();
  }
};

// y[m, n] as in Dense, with packed weights, which are aligned to 64 bytes. x and y in `type`.
struct Quantized {
  Type type;
  Packing packing;
  Matrix x;
  const char* w;
  void* y;
  int rows;
};

// The gated delta rule over `steps` rows of one sequence. q, k: (steps, key_heads, key_width);
// v, y: (steps, heads, value_width); a, b: (steps, heads); state: (heads, value_width, key_width)
// in float32, updated in place. The decay is exp(-exp(a_log) * softplus(a + dt_bias)), the
// strength sigmoid(b).
struct GatedDelta {
  Type type, a_log_type, dt_bias_type;
  const void *q, *k, *v, *a, *b, *a_log, *dt_bias;
  void* y;
  float* state;
  int steps, key_heads, heads, key_width, value_width;
};

// Softmax attention of `rows` queries of one head over `keys` keys. With `causal` the last row
// sees all of them, the one before it one less, and so on; a mask (rows, keys) that is not null
// says of each key whether a row sees it. Row pitches in elements.
struct Attention {
  Type type;
  Matrix q, k, v;
  const bool* mask;
  void* y;
  long y_pitch;
  float scale;
  int rows, keys, width;
  bool causal;
};

// y = x / sqrt(mean(x^2) + eps) * weight * factor * silu(gate); weight and gate may be null.
struct RmsNorm {
  Type type;
  const void *x, *weight, *gate;
  void* y;
  float eps, factor;
  int rows, width;
};

// Rotates the first `dims` of each row: element i with i + dims / 2, by the angle whose cosine
// and sine are given (dims / 2 each).
struct Rotate {
  Type type;
  const void* x;
  void* y;
  const float *cosines, *sines;
  int dims, width;
};

// y[t, c] = sum over i of x[t + i, c] * w[i, c]; x has steps + taps - 1 rows, w is float32. With
// `silu`, that of the sum.
struct Convolve {
  Type type;
  const void* x;
  const float* w;
  void* y;
  int steps, taps, channels;
  bool silu;
};

// y[t, c] = sum over i of (base[i, c] + own[t, i, c / group]) * x[t - i, c]; before the first row
// are zeros. x, base and own in `type`; own's rows are `own_pitch` elements apart.
struct OwnConvolve {
  Type type;
  const void *x, *base, *own;
  long own_pitch;
  void* y;
  int steps, taps, channels, group;
};

// y = silu(gate) * x.
struct Swiglu {
  Type type;
  const void *gate, *x;
  void* y;
  long count;
};

// y = a + b, or sigmoid(a) * b.
struct Pair {
  Type type;
  const void *a, *b;
  void* y;
  long count;
};

// The token that a row of logits chooses, in x's `type`: the best of x / temperature + noise, by
// (seed, position) and id, among what top-k, top-p and min-p leave; of x itself where the temperature
// is 0. top_k 0 and top_p 1 leave all; min_score is the least (x - best) / temperature. -1 where x
// holds a NaN or +inf, or nothing is left. Of equal ones the lowest id.
struct Choice {
  Type type;
  const void* x;
  int width;
  float temperature;
  int top_k;
  float top_p, min_score;
  std::uint32_t low, high;  // the noise's key
};

// The `count` best of x, best first, equal ones by number; never a NaN.
struct Best {
  Type type;
  const void* x;
  int width, count;
  float* scores;
  int* ids;
};

struct Kernels {
  void (*dense)(const Dense&);
  void (*quantized)(const Quantized&);
  void (*gated_delta)(const GatedDelta&);
  void (*attention)(const Attention&);
  void (*rms_norm)(const RmsNorm&);
  void (*rotate)(const Rotate&);
  void (*convolve)(const Convolve&);
  void (*swiglu)(const Swiglu&);
  void (*add)(const Pair&);
  void (*gate)(const Pair&);
  void (*own_convolve)(const OwnConvolve&);
  int (*choose)(const Choice&);
  void (*best)(const Best&);
  // Of a token, by the two halves of the position's key.
  float (*noise)(std::uint32_t low, std::uint32_t high, int token);
};

extern const Kernels avx2_kernels;
extern const Kernels avx512_kernels;
extern const Kernels neon_kernels;

// What further instructions change. All else stays: it would be the same code once more.
void avx2_vnni_quantized(const Quantized&);
void avx512_vnni_quantized(const Quantized&);
void avx512_bf16_dense(const Dense&);
void avx512_bf16_attention(const Attention&);
void amx_dense(const Dense&);
void amx_quantized(const Quantized&);

inline Kernels avx2_vnni_kernels() {
  Kernels set = avx2_kernels;
  set.quantized = avx2_vnni_quantized;
  return set;
}
inline Kernels avx512_vnni_kernels() {
  Kernels set = avx512_kernels;
  set.quantized = avx512_vnni_quantized;
  return set;
}
inline Kernels avx512_bf16_kernels() {
  Kernels set = avx512_vnni_kernels();
  set.dense = avx512_bf16_dense;
  set.attention = avx512_bf16_attention;
  return set;
}
inline Kernels amx_kernels() {
  Kernels set = avx512_bf16_kernels();
  set.dense = amx_dense;
  set.quantized = amx_quantized;
  return set;
}

}  // namespace pillion
