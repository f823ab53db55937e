// Softmax attention of a few queries over many keys.

#pragma once

namespace {

// scores: of `count` keys, turned into weights that add up to 1.
inline void softmax(float* scores, int count, float scale) {
  Vec highest = all(-__builtin_inff());
  const Vec scales = all(scale);
  for_row<float>(count, [&](int i, int n) {
    Vec score = some(scores + i, n) * scales;
    put_some(scores + i, score, n);
    // Lanes behind the end hold a zero, which must not count.
    float padded[W];
    store(padded, score);
    for (int j = n; j < W; j++) padded[j] = -__builtin_inff();
    highest = n == W ? maximum(highest, score) : maximum(highest, load(padded));
  });
  float lanes[W];
  store(lanes, highest);
  float top = lanes[0];
  for (int i = 1; i < W; i++) top = lanes[i] > top ? lanes[i] : top;
  Vec total = zero();
  for_row<float>(count, [&](int i, int n) {
    put_some(scores + i, exponential(some(scores + i, n) - all(top)), n);
    total = total + some(scores + i, n);
  });
  const Vec share = all(1.0f / sum_of(total));
  for_row<float>(count, [&](int i, int n) {
    put_some(scores + i, some(scores + i, n) * share, n);
  });
}

template <class T>
void weigh(const float* weights, const T* v, long pitch, T* y, int count, int width) {
  constexpr int WIDE = 4;
  for (int c = 0; c < width; c += WIDE * W) {
    Vec sum[WIDE] = {};
    const int left = (width - c + W - 1) / W < WIDE ? (width - c + W - 1) / W : WIDE;
    for (int j = 0; j < count; j++) {
      const Vec weight = all(weights[j]);
      const T* row = v + j * pitch + c;
      for (int i = 0; i < left; i++) {
        const int n = width - c - i * W;
        sum[i] = fma(weight, some(row + i * W, n < W ? n : W), sum[i]);
      }
    }
    for (int i = 0; i < left; i++) {
      const int n = width - c - i * W;
      put_some(y + c + i * W, sum[i], n < W ? n : W);
    }
  }
}

template <class T>
void attend(const pillion::Attention& a) {
  const T *q = static_cast<const T*>(a.q.data), *v = static_cast<const T*>(a.v.data);
  const int block = a.rows < TILE_ROWS ? a.rows : TILE_ROWS;
  Scratch scores(static_cast<long>(block) * a.keys);
  for (int from = 0; from < a.rows; from += block) {
    const int rows = a.rows - from < block ? a.rows - from : block;
    const int seen = a.causal ? a.keys - a.rows + from + rows : a.keys;
    const Matrix queries{q + from * a.q.pitch, a.q.pitch};
    multiply_dense<T>(queries, a.k, scores.data, static_cast<long>(a.keys), rows, a.width, seen);
    for (int row = 0; row < rows; row++) {
      const int count = a.causal ? a.keys - a.rows + from + row + 1 : a.keys;
      float* own = scores.data + static_cast<long>(row) * a.keys;
      if (a.mask != nullptr) {
        const bool* seen_by_row = a.mask + static_cast<long>(from + row) * a.keys;
        // Hidden keys get a weight of exactly zero, which changes no sum.
        for (int j = 0; j < count; j++) own[j] = seen_by_row[j] ? own[j] : -__builtin_inff();
      }
      softmax(own, count, a.scale);
      weigh(own, v, a.v.pitch, static_cast<T*>(a.y) + (from + row) * a.y_pitch, count, a.width);
    }
  }
}

void attention(const pillion::Attention& a) {
  a.type == Type::f32 ? attend<float>(a) : attend<bf16>(a);
}

}  // namespace
