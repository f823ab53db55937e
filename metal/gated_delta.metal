// The gated delta rule over T rows of tokens; leaves the tape from which any of them can be taken
// back. What it computes, its arrays and its traffic: gated_delta.py.
//
// Four lanes hold one row of the state, so a simdgroup holds eight rows. A product with the state is
// added up as 32 lanes with Dk / 32 elements each would do it: every chain of Dk / 32 elements one
// after the other, then a tree that adds neighbours. That is the order of mlx-lm's kernels where
// simd_sum adds neighbours first; here it is written out, so it is part of the source.
//
// After mlx-lm (github.com/ml-explore/mlx-lm, models/gated_delta.py), MIT License.
//
// Copyright (c) 2023 Apple Inc.
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

inline float sum_of_row(thread const float (&part)[8]) {
  float sum = ((part[0] + part[1]) + (part[2] + part[3])) +
      ((part[4] + part[5]) + (part[6] + part[7]));
  sum += simd_shuffle_xor(sum, 1);
  sum += simd_shuffle_xor(sum, 2);
  return sum;
}

// body
constexpr int lanes = 4;
constexpr int rows = 32 / lanes;
constexpr int width = Dk / lanes;
constexpr int chain = Dk / 32;

const int index = thread_position_in_grid.z;
const int batch = index / Hv;
const int head = index % Hv;
const int key_head = head / (Hv / Hk);
const int lane = thread_index_in_simdgroup;
const int first = (lane % lanes) * width;
const int row = thread_position_in_grid.y * rows + lane / lanes;
const bool writes = lane % lanes == 0;

float state[width];
const int state_at = (index * Dv + row) * Dk + first;
for (int i = 0; i < width; ++i) {
  state[i] = state_in[state_at + i];
}

// The rows that stay of the forward before this one, as gated_delta_replay.metal runs them.
for (int t = 0; t < keep; ++t) {
  const int at = batch * old_rows + t;
  const float decay = old_g[at * Hv + head];
  const float delta = old_delta[(at * Hv + head) * Dv + row];
  const auto key = old_k + (at * Hk + key_head) * Dk + first;
  for (int i = 0; i < width; ++i) {
    state[i] = fma(static_cast<float>(key[i]), delta, state[i] * decay);
  }
}
if (!After) {
  for (int i = 0; i < width; ++i) {
    state_out[state_at + i] = state[i];
  }
}

for (int t = 0; t < T; ++t) {
  const int at = batch * T + t;
  const int value_at = (at * Hv + head) * Dv + row;
  if (Masked && !mask[at]) {
    if (writes) {
      y[value_at] = static_cast<OutT>(0.0f);
      delta_out[value_at] = 0.0f;
    }
    continue;
  }
  const float decay = g[at * Hv + head];
  const auto key = k + (at * Hk + key_head) * Dk + first;
  const auto query = q + (at * Hk + key_head) * Dk + first;
  float part[8];
  for (int c = 0; c < 8; ++c) {
    part[c] = 0.0f;
    for (int i = c * chain; i < (c + 1) * chain; ++i) {
      state[i] = state[i] * decay;
      part[c] = fma(state[i], static_cast<float>(key[i]), part[c]);
    }
  }
  const float seen = sum_of_row(part);
  const float delta =
      (static_cast<float>(v[value_at]) - seen) * static_cast<float>(beta[at * Hv + head]);
  for (int c = 0; c < 8; ++c) {
    part[c] = 0.0f;
    for (int i = c * chain; i < (c + 1) * chain; ++i) {
      state[i] = fma(static_cast<float>(key[i]), delta, state[i]);
      part[c] = fma(state[i], static_cast<float>(query[i]), part[c]);
    }
  }
  const float out = sum_of_row(part);
  if (writes) {
    y[value_at] = static_cast<OutT>(out);
    delta_out[value_at] = delta;
  }
}
if (After) {
  for (int i = 0; i < width; ++i) {
    state_out[state_at + i] = state[i];
  }
}
