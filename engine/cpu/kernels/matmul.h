// Matrix multiplications: dense and quantised weights, few rows or many.
//
// A result is the sum of W partial sums, each over every W-th step of the depth, whatever the tile
// it was computed in. Tiles differ in how many weight rows share the loads of a row of x.

#pragma once

#include <cstdlib>

namespace {

using pillion::Matrix;
using pillion::Type;

// Weights that a pass over all rows of x should find in the second-level cache.
constexpr long BLOCK_BYTES = 256 << 10;
constexpr int TILE_ROWS = W < 8 ? W : 8;
// With so few rows, the weights come from memory and the next tile's are asked for early.
constexpr int PREFETCHED_ROWS = 4;

template <int M>
constexpr int weight_rows = M <= W ? W / M : 1;

struct Scratch {
  float* data;
  explicit Scratch(long count)
      : data(static_cast<float*>(std::malloc(static_cast<unsigned long>(count + W) * 4))) {
    if (data == nullptr) std::abort();
  }
  ~Scratch() {
    std::free(data);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
};

template <int M, int R, class Out>
inline void put(Out* y, long pitch, const Vec* partial) {
  Out all[W];
  store(all, sums(partial));
  for (int m = 0; m < M; m++) {
    for (int r = 0; r < R; r++) y[m * pitch + r] = all[r * M + m];
  }
}

// --- dense ---------------------------------------------------------------------------------------

template <class T, class Out>
struct DenseBlock {
  const T *x, *w;
  Out* y;
  long x_pitch, w_pitch, y_pitch;
  int depth;

  template <int M, int R>
  void tile(int m0, int n0) const {
    using S = Step<T>;
    const T *xs = x + m0 * x_pitch, *ws = w + n0 * w_pitch;
    Vec partial[W];
    for (auto& p : partial) p = zero();
    int k = 0;
    for (; k + S::count <= depth; k += S::count) {
      S weights[R];
      for (int r = 0; r < R; r++) {
        weights[r] = S::of(ws + r * w_pitch + k);
        if constexpr (M <= PREFETCHED_ROWS) {
          __builtin_prefetch(ws + (r + R) * w_pitch + k);
        }
      }
      for (int m = 0; m < M; m++) {
        S row = S::of(xs + m * x_pitch + k);
        for (int r = 0; r < R; r++) {
          partial[r * M + m] = S::add(partial[r * M + m], weights[r], row);
        }
      }
    }
    if (k < depth) {
      for (int m = 0; m < M; m++) {
        S row = S::of(xs + m * x_pitch + k, depth - k);
        for (int r = 0; r < R; r++) {
          S weights = S::of(ws + r * w_pitch + k, depth - k);
          partial[r * M + m] = S::add(partial[r * M + m], weights, row);
        }
      }
    }
    put<M, R>(y + m0 * y_pitch + n0, y_pitch, partial);
  }
};

// --- quantised -----------------------------------------------------------------------------------

// x as the packed words want it: value i of word j of a block stands at [i][j]. Behind the depth
// are zeros. group_sums: of x, for the biases.
struct PackedRows {
  const float *values, *group_sums;
  long pitch, groups;
};

template <int BITS, class S>
struct QuantizedBlock {
  static constexpr int PER_WORD = 32 / BITS;
  static constexpr int COUNT = W * PER_WORD;
  PackedRows x;
  const std::uint32_t* w;
  const S *scales, *biases;
  float* y;
  long y_pitch;
  int depth, group;

  template <int M, int R>
  inline void add_block(Vec (&partial)[W], const float* xs, int n0, int k) const {
    // Few rows leave room to unpack one weight row at a time; many share the loads of x.
    constexpr int TOGETHER = M <= 2 ? 1 : R;
    const int words = depth / PER_WORD, left = (depth - k) / PER_WORD;
    const int in_block = COUNT > group ? COUNT / group : 1;
    const int groups_left = static_cast<int>(x.groups) - k / group;
    const int scale_count = in_block < groups_left ? in_block : groups_left;
    for (int first_row = 0; first_row < R; first_row += TOGETHER) {
      Ints packed[TOGETHER];
      Vec scale[TOGETHER];
      for (int r = 0; r < TOGETHER; r++) {
        const long row = n0 + first_row + r;
        const std::uint32_t* at = w + row * words + k / PER_WORD;
        packed[r] = load_words(at, left < W ? left : W);
        if constexpr (M <= PREFETCHED_ROWS) {
          __builtin_prefetch(at + R * words);
        }
        scale[r] = spread(scales + row * x.groups + k / group, scale_count, in_block);
      }
      for (int i = 0; i < PER_WORD; i++) {
        Vec weights[TOGETHER];
        for (int r = 0; r < TOGETHER; r++) weights[r] = unpacked<BITS>(packed[r], i) * scale[r];
        for (int m = 0; m < M; m++) {
          Vec row = load(xs + m * x.pitch + k + i * W);
          for (int r = 0; r < TOGETHER; r++) {
            Vec& sum = partial[(first_row + r) * M + m];
            sum = fma(weights[r], row, sum);
          }
        }
      }
    }
  }

  template <int M, int R>
  void tile(int m0, int n0) const {
    Vec partial[W];
    for (auto& p : partial) p = zero();
    for (int k = 0; k < depth; k += COUNT) {
      add_block<M, R>(partial, x.values + m0 * x.pitch, n0, k);
    }
    for (int g = 0; g < x.groups; g += W) {
      const int n = x.groups - g < W ? static_cast<int>(x.groups - g) : W;
      for (int r = 0; r < R; r++) {
        Vec bias = load(biases + (n0 + r) * x.groups + g, n);
        for (int m = 0; m < M; m++) {
          Vec row = load(x.group_sums + (m0 + m) * x.groups + g, n);
          partial[r * M + m] = fma(bias, row, partial[r * M + m]);
        }
      }
    }
    put<M, R>(y + m0 * y_pitch + n0, y_pitch, partial);
  }
};

inline float as_float(float x) {
  return x;
}
inline float as_float(bf16 x) {
  union {
    std::uint32_t bits;
    float value;
  } both = {static_cast<std::uint32_t>(x.bits) << 16};
  return both.value;
}

template <int BITS, class T>
void pack_row(const T* x, float* values, float* group_sums, int depth, int group) {
  constexpr int PER_WORD = 32 / BITS, COUNT = W * PER_WORD;
  for (int k = 0; k < depth; k += COUNT) {
    for (int j = 0; j < W; j++) {
      for (int i = 0; i < PER_WORD; i++) {
        const int at = k + j * PER_WORD + i;
        values[k + i * W + j] = at < depth ? as_float(x[at]) : 0.0f;
      }
    }
  }
  for (int g = 0; g < depth / group; g++) {
    Vec sum[W] = {};
    for (int k = 0; k < group; k += W) sum[0] = sum[0] + load(x + g * group + k);
    store(group_sums + g, sums(sum), 1);
  }
}

// --- all of a matrix -----------------------------------------------------------------------------

// A last tile that would reach past the end starts earlier and computes some results again.
template <int M, class Block>
void strip(const Block& block, int m0, int from, int to) {
  constexpr int R = weight_rows<M>;
  if (to < R) {
    for (int m = 0; m < M; m++) {
      for (int n = from; n < to; n++) block.template tile<1, 1>(m0 + m, n);
    }
    return;
  }
  for (int n = from; n < to; n += R) block.template tile<M, R>(m0, n + R <= to ? n : to - R);
}

// The rows behind the last whole tile, at most M of them.
template <int M, class Block>
void rest(const Block& block, int m0, int from, int to, int rows) {
  if constexpr (M > 0) {
    rows == M ? strip<M>(block, m0, from, to) : rest<M - 1>(block, m0, from, to, rows);
  }
}

template <class Block>
void multiply(const Block& block, int rows, int width, long row_bytes) {
  long fitting = BLOCK_BYTES / (row_bytes > 0 ? row_bytes : 1) / W * W;
  const int step = rows <= TILE_ROWS ? width : static_cast<int>(fitting < W ? W : fitting);
  for (int from = 0; from < width; from += step) {
    const int to = from + step < width ? from + step : width;
    int m = 0;
    for (; m + TILE_ROWS <= rows; m += TILE_ROWS) strip<TILE_ROWS>(block, m, from, to);
    rest<TILE_ROWS - 1>(block, m, from, to, rows - m);
  }
}

template <class T, class Out>
void multiply_dense(Matrix x, Matrix w, Out* y, long y_pitch, int rows, int depth, int width) {
  DenseBlock<T, Out> block{static_cast<const T*>(x.data), static_cast<const T*>(w.data), y,
                           x.pitch, w.pitch, y_pitch, depth};
  multiply(block, rows, width, static_cast<long>(sizeof(T)) * depth);
}

void dense(const pillion::Dense& a) {
  if (a.type == Type::f32) {
    multiply_dense<float>(a.x, a.w, static_cast<float*>(a.y), a.width, a.rows, a.depth, a.width);
  } else {
    multiply_dense<bf16>(a.x, a.w, static_cast<bf16*>(a.y), a.width, a.rows, a.depth, a.width);
  }
}

template <int BITS, class S>
void multiply_quantized(const pillion::Quantized& a, float* y) {
  using Block = QuantizedBlock<BITS, S>;
  const long pitch = (a.depth + Block::COUNT - 1) / Block::COUNT * static_cast<long>(Block::COUNT);
  const long groups = a.depth / a.group;
  Scratch values(pitch * a.rows), group_sums(groups * a.rows);
  for (int m = 0; m < a.rows; m++) {
    float *into = values.data + m * pitch, *into_sums = group_sums.data + m * groups;
    if (a.type == Type::f32) {
      const float* x = static_cast<const float*>(a.x.data) + m * a.x.pitch;
      pack_row<BITS>(x, into, into_sums, a.depth, a.group);
    } else {
      const bf16* x = static_cast<const bf16*>(a.x.data) + m * a.x.pitch;
      pack_row<BITS>(x, into, into_sums, a.depth, a.group);
    }
  }
  Block block{{values.data, group_sums.data, pitch, groups},
              a.w,
              static_cast<const S*>(a.scales),
              static_cast<const S*>(a.biases),
              y,
              a.width,
              a.depth,
              a.group};
  multiply(block, a.rows, a.width, a.depth * BITS / 8 + groups * 2 * static_cast<long>(sizeof(S)));
}

template <int BITS>
void with_scales(const pillion::Quantized& a, float* y) {
  switch (a.scale_type) {
    case Type::f32: return multiply_quantized<BITS, float>(a, y);
    case Type::bf16: return multiply_quantized<BITS, bf16>(a, y);
    case Type::f16: return multiply_quantized<BITS, f16>(a, y);
  }
}

void quantized(const pillion::Quantized& a) {
  const auto run = a.bits == 4 ? with_scales<4> : with_scales<8>;
  if (a.type == Type::f32) return run(a, static_cast<float*>(a.y));
  const long count = static_cast<long>(a.rows) * a.width;
  Scratch results(count);
  run(a, results.data);
  bf16* y = static_cast<bf16*>(a.y);
  for (long i = 0; i < count; i += W) {
    const int n = count - i < W ? static_cast<int>(count - i) : W;
    n == W ? store(y + i, load(results.data + i)) : store(y + i, load(results.data + i), n);
  }
}

}  // namespace
