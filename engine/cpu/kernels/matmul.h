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
      : data(static_cast<float*>(
            std::aligned_alloc(64, (static_cast<unsigned long>(count + W) * 4 + 63) / 64 * 64))) {
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

}  // namespace
