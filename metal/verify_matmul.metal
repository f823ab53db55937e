// A few rows times a quantised matrix, the weights read once. One simdgroup makes RESULTS outputs of
// every row. A lane's values, the order of their products and of their sums are those of MLX's
// one-row kernels (mlx/backend/metal/kernels/quantized.h, qmv_fast with two words a lane, qmv with
// one), whatever M, RESULTS and TILE are: so a row's bits do not depend on how many rows there are.
//
// After MLX (github.com/ml-explore/mlx), MIT License.
//
// Copyright (c) 2023-2024 Apple Inc.
//
// Permission is hereby granted, free of charge, to any person obtaining a copy
// of this software and associated documentation files (the "Software"), to deal
// in the Software without restriction, including without limitation the rights
// to use, copy, modify, merge, publish, distribute, sublicense, and/or sell
// copies of the Software, and to permit persons to whom the Software is
// furnished to do so, subject to the following conditions:
//
// The above copyright notice and this permission notice shall be included in all
// copies or substantial portions of the Software.
//
// THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR
// IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY,
// FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE
// AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER
// LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM,
// OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE
// SOFTWARE.

// Arrays stay in registers only if no index is left when the program runs.
#define UNROLL _Pragma("unroll")

template <typename T, int BITS, int VALUES>
inline float load_row(const device T* x, thread float* values) {
  float sum = 0;
  if (BITS == 4) {
    UNROLL
    for (int i = 0; i < VALUES; i += 4) {
      sum += float(x[i]) + float(x[i + 1]) + float(x[i + 2]) + float(x[i + 3]);
      // A nibble is used where it stands in its word, so the others are scaled instead.
      values[i] = x[i];
      values[i + 1] = x[i + 1] / 16.0f;
      values[i + 2] = x[i + 2] / 256.0f;
      values[i + 3] = x[i + 3] / 4096.0f;
    }
  } else {
    UNROLL
    for (int i = 0; i < VALUES; i++) {
      sum += x[i];
      values[i] = x[i];
    }
  }
  return sum;
}

template <int BITS, int VALUES>
inline void unpack(const thread uint* words, thread float* weights) {
  if (BITS == 4) {
    UNROLL
    for (int i = 0; i < VALUES; i += 4) {
      const uint half_word = words[i / 8] >> (i % 8 * 4);
      weights[i] = half_word & 0x000f;
      weights[i + 1] = half_word & 0x00f0;
      weights[i + 2] = half_word & 0x0f00;
      weights[i + 3] = half_word & 0xf000;
    }
  } else {
    UNROLL
    for (int i = 0; i < VALUES; i++) {
      weights[i] = (words[i / 4] >> (i % 4 * 8)) & 0xff;
    }
  }
}

template <int BITS, int VALUES>
inline float dot_row(
    const thread float* x,
    const thread float* weights,
    float scale,
    float bias,
    float sum) {
  float products = 0;
  if (BITS == 4) {
    UNROLL
    for (int i = 0; i < VALUES; i += 4) {
      products +=
          (x[i] * weights[i] + x[i + 1] * weights[i + 1] + x[i + 2] * weights[i + 2] +
           x[i + 3] * weights[i + 3]);
    }
  } else {
    UNROLL
    for (int i = 0; i < VALUES; i++) {
      products += x[i] * weights[i];
    }
  }
  return scale * products + sum * bias;
}

// y[slots[m], out + r] for m < count and r < RESULTS. Row m of x is slots[m] / SLOTS_A_ROW.
// w (N, K * BITS / 32), scales and biases (N, K / GROUP), x (rows, K), y (slots, N).
template <
    typename T,
    int GROUP,
    int BITS,
    int PACKS,
    int M,
    int RESULTS,
    int TILE,
    int SLOTS_A_ROW>
inline void multiply_rows(
    const device uint* w,
    const device T* scales,
    const device T* biases,
    const device T* x,
    device T* y,
    const thread int* slots,
    int count,
    int K,
    int N,
    int out,
    int lane) {
  constexpr int VALUES = PACKS * 32 / BITS;
  const int words_a_row = K * BITS / 32;
  const int groups_a_row = K / GROUP;
  float totals[M][RESULTS];
  UNROLL
  for (int m = 0; m < M; m++) {
    UNROLL
    for (int r = 0; r < RESULTS; r++) {
      totals[m][r] = 0;
    }
  }
  // K is a multiple of a lane's values, so the last block has lanes with all of them or none.
  for (int k = lane * VALUES; k < K; k += 32 * VALUES) {
    uint words[RESULTS][PACKS];
    float scale[RESULTS];
    float bias[RESULTS];
    UNROLL
    for (int r = 0; r < RESULTS; r++) {
      // Rows behind the last repeat it and are not stored.
      const long row = min(out + r, N - 1);
      UNROLL
      for (int p = 0; p < PACKS; p++) {
        words[r][p] = w[row * words_a_row + k * BITS / 32 + p];
      }
      scale[r] = scales[row * groups_a_row + k / GROUP];
      bias[r] = biases[row * groups_a_row + k / GROUP];
    }
    UNROLL
    for (int first = 0; first < M; first += TILE) {
      float values[TILE][VALUES];
      float sums[TILE];
      UNROLL
      for (int m = 0; m < TILE; m++) {
        if (first + m < M && first + m < count) {
          const long row = slots[first + m] / SLOTS_A_ROW;
          sums[m] = load_row<T, BITS, VALUES>(x + row * K + k, values[m]);
        }
      }
      UNROLL
      for (int r = 0; r < RESULTS; r++) {
        float weights[VALUES];
        unpack<BITS, VALUES>(words[r], weights);
        UNROLL
        for (int m = 0; m < TILE; m++) {
          if (first + m < M && first + m < count) {
            totals[first + m][r] +=
                dot_row<BITS, VALUES>(values[m], weights, scale[r], bias[r], sums[m]);
          }
        }
      }
    }
  }
  UNROLL
  for (int m = 0; m < M; m++) {
    if (m < count) {
      UNROLL
      for (int r = 0; r < RESULTS; r++) {
        const float total = simd_sum(totals[m][r]);
        if (lane == 0 && out + r < N) {
          y[long(slots[m]) * N + out + r] = static_cast<T>(total);
        }
      }
    }
  }
}

// body
const int K = x_shape[1];
const int N = w_shape[0];
const int lane = thread_index_in_simdgroup;
const int out = (threadgroup_position_in_grid.y * simdgroups_per_threadgroup +
                 simdgroup_index_in_threadgroup) *
    RESULTS;
if (out >= N) {
  return;
}
int slots[M];
UNROLL
for (int m = 0; m < M; m++) {
  slots[m] = m;
}
multiply_rows<T, GROUP, BITS, PACKS, M, RESULTS, TILE, 1>(
    w, scales, biases, x, y, slots, M, K, N, out, lane);
