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

// Rows of weights, of which row m has the first counts[m], times the rows of v.
struct Weighed {
  const float* weights;
  long weights_pitch, v_pitch, y_pitch;
  const int* counts;  // not falling
};

// `WIDE` vectors side by side, or less than one: `n` elements. A row of v is read once for M rows.
template <int M, int WIDE, class T>
inline void weigh_columns(const Weighed& a, const T* v, T* y, int n) {
  Vec sum[M][WIDE];
  for (auto& row : sum) {
    for (auto& part : row) part = zero();
  }
  const auto add = [&](int m, int j, const Vec* values) {
    const Vec weight = all(a.weights[m * a.weights_pitch + j]);
#pragma GCC unroll 4
    for (int i = 0; i < WIDE; i++) sum[m][i] = fma(weight, values[i], sum[m][i]);
  };
  const auto read = [&](int j, Vec* values) {
    const T* row = v + j * a.v_pitch;
#pragma GCC unroll 4
    for (int i = 0; i < WIDE; i++) values[i] = WIDE > 1 ? load(row + i * W) : some(row, n);
  };
  Vec values[WIDE];
  for (int j = 0; j < a.counts[0]; j++) {
    read(j, values);
#pragma GCC unroll 4
    for (int m = 0; m < M; m++) add(m, j, values);
  }
#pragma GCC unroll 4
  for (int m = 0; m < M; m++) {
    for (int j = a.counts[0]; j < a.counts[m]; j++) {
      read(j, values);
      add(m, j, values);
    }
#pragma GCC unroll 4
    for (int i = 0; i < WIDE; i++) {
      put_some(y + m * a.y_pitch + i * W, sum[m][i], WIDE > 1 ? W : n);
    }
  }
}

template <int M, class T>
void weigh(const Weighed& a, const T* v, T* y, int width) {
  // As many sums as there are registers for.
  constexpr int WIDE = W < 16 && M > 1 ? 2 : 4;
  int c = 0;
  for (; c + WIDE * W <= width; c += WIDE * W) weigh_columns<M, WIDE>(a, v + c, y + c, W);
  for (; c < width; c += W) {
    weigh_columns<M, 1>(a, v + c, y + c, width - c < W ? width - c : W);
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
    int counts[TILE_ROWS];
    for (int row = 0; row < rows; row++) {
      const int count = a.causal ? a.keys - a.rows + from + row + 1 : a.keys;
      counts[row] = count;
      float* own = scores.data + static_cast<long>(row) * a.keys;
      if (a.mask != nullptr) {
        const bool* seen_by_row = a.mask + static_cast<long>(from + row) * a.keys;
        // Hidden keys get a weight of exactly zero, which changes no sum.
        for (int j = 0; j < count; j++) own[j] = seen_by_row[j] ? own[j] : -__builtin_inff();
      }
      softmax(own, count, a.scale);
    }
    constexpr int TOGETHER = 4;
    for (int row = 0; row < rows;) {
      const Weighed weighed{scores.data + static_cast<long>(row) * a.keys, a.keys, a.v.pitch,
                            a.y_pitch, counts + row};
      T* y = static_cast<T*>(a.y) + (from + row) * a.y_pitch;
      const bool several = rows - row >= TOGETHER;
      several ? weigh<TOGETHER>(weighed, v, y, a.width) : weigh<1>(weighed, v, y, a.width);
      row += several ? TOGETHER : 1;
    }
  }
}

void attention(const pillion::Attention& a) {
  a.type == Type::f32 ? attend<float>(a) : attend<bf16>(a);
}

}  // namespace
