// Quantised weights times rows in fixed point: sums of integers, which are exact in any order.
//
// Each group of a row of x, as many elements as share a scale of the weights, becomes integers of 16
// bits: x = q * scale, and |q| is MOST at the group's largest magnitude. A group's products add up to
// less than 2^31, so its sum has the same bits on every instruction set, in tiles or not, for any
// number of rows. Behind that all of them do the same in float32, for each group in turn:
//
//   y = fma(sum of q * w, weight scale * scale, y), y = fma(weight bias, scale * sum of q, y)
//
// An element is off by at most half a step: |x - q * scale| <= step / 2, where a step is the larger
// of the group's largest magnitude and FLOOR, over MOST. So y is off by at most the sum over the
// groups of step / 2 * sum |w|, and by the float32 rounding of two products a group. A group that
// holds a NaN or an infinity makes its row NaN, and no other.

#pragma once

namespace {

// High and low bytes of q are multiplied apart, both signed: 127 * 256 + 127.
constexpr float MOST = 32639.0f;
// What is smaller is rounded as if the group held this: a scale is never subnormal.
constexpr float FLOOR = 0x1p-100f;
constexpr int INFINITE_BITS = 0x7f800000;

inline int largest_lane(Ints x) {
  int lanes[W], largest = 0;
  store(lanes, x);
  for (int lane : lanes) largest = lane > largest ? lane : largest;
  return largest;
}

inline int sum_of_lanes(Ints x) {
  int lanes[W], sum = 0;
  store(lanes, x);
  for (int lane : lanes) sum += lane;
  return sum;
}

// The rows of x that share the loads of weights: sums, totals and weights are all registers.
constexpr int SHARING = W < 16 ? 4 : 8;

// Rows of x. Four elements of a row are two words, as Product wants them. For vectors the words of
// up to SHARING rows lie together, step by step of the depth; for tiles each row is two planes of
// `depth` bytes, first words and second ones.
class FixedRows {
 public:
  int rows, depth, group, groups;

  // Behind the rows are rows of zeros, up to `padded` of them together.
  FixedRows(Type type, Matrix x, int rows_of_x, int depth_of_x, int group_of_x, int padded = 0)
      : rows(rows_of_x),
        depth(depth_of_x),
        group(group_of_x),
        groups(depth / group),
        in_planes_(padded > 0),
        pitch_(padded > 0 ? padded : rows),
        words_(pitch_ * depth / 2),
        scales_(pitch_ * groups),
        sums_(pitch_ * groups) {
    for (int m = 0; m < rows; m++) {
      type == Type::f32 ? fix(static_cast<const float*>(x.data) + m * x.pitch, m)
                        : fix(static_cast<const bf16*>(x.data) + m * x.pitch, m);
    }
    if (pitch_ == rows) return;
    __builtin_memset(plane(2 * rows), 0, 2ul * static_cast<unsigned long>((pitch_ - rows) * depth));
    for (int g = 0; g < groups; g++) {
      for (long m = rows; m < pitch_; m++) {
        scales_.data[g * pitch_ + m] = sums_.data[g * pitch_ + m] = 0.0f;
      }
    }
  }

  char* plane(int i) const {
    return reinterpret_cast<char*>(words_.data) + static_cast<long>(i) * depth;
  }
  // Of the rows from `row` on, which is a multiple of SHARING.
  std::uint32_t* words(int row) const {
    return reinterpret_cast<std::uint32_t*>(words_.data) + static_cast<long>(row) * (depth / 2);
  }
  // By row: the factor of its integers in this group, and their sum in x's own measure.
  const float* scales(int g) const {
    return scales_.data + g * pitch_;
  }
  const float* sums(int g) const {
    return sums_.data + g * pitch_;
  }

 private:
  template <class T>
  void fix(const T* x, int row) {
    for (int g = 0; g < groups; g++, x += group) {
      Ints top = all_ints(0);
      for (int k = 0; k < group; k += W) top = larger(top, magnitude_bits(load(x + k)));
      union {
        int bits;
        float value;
      } largest = {largest_lane(top)};
      const bool finite = largest.bits < INFINITE_BITS;
      if (!finite || largest.value < FLOOR) largest.value = FLOOR;
      const Vec inverse = all(MOST / largest.value);
      int numbers[128];
      Ints sum = all_ints(0);
      for (int k = 0; k < group; k += W) {
        const Ints q = finite ? to_ints(load(x + k) * inverse) : all_ints(0);
        store(numbers + k, q);
        sum = plus(sum, q);
      }
      const float scale = largest.value / MOST;
      scales_.data[g * pitch_ + row] = finite ? scale : __builtin_nanf("");
      sums_.data[g * pitch_ + row] = scale * static_cast<float>(sum_of_lanes(sum));
      put(numbers, row, g);
    }
  }

  void put(const int* numbers, int row, int g) {
    std::uint32_t first[32], second[32];
    Product::encode(numbers, group, first, second);
    if (in_planes_) {
      const auto bytes = static_cast<unsigned long>(group);
      __builtin_memcpy(plane(2 * row) + g * group, first, bytes);
      __builtin_memcpy(plane(2 * row + 1) + g * group, second, bytes);
      return;
    }
    const int from = row / SHARING * SHARING,
              together = rows - from < SHARING ? rows - from : SHARING;
    std::uint32_t* into =
        words(from) + 2 * (static_cast<long>(g) * group / 4 * together + row - from);
    for (int i = 0; i < group / 4; i++, into += 2 * together) {
      into[0] = first[i];
      into[1] = second[i];
    }
  }

  bool in_planes_;
  long pitch_;
  Scratch words_, scales_, sums_;
};

// The weights of four steps of the depth at a time, from words of as many rows as there are lanes.
template <int BITS, class Body>
inline void each_four(Ints words, Body body) {
  if constexpr (BITS == 4) {
    const Ints low = all_ints(0x0f0f0f0f);
    body(words & low);
    body(shifted_right<4>(words) & low);
  } else {
    body(words);
  }
}

inline void put_results(void* y, Type type, long at, Vec result, int count) {
  type == Type::f32 ? put_some(static_cast<float*>(y) + at, result, count)
                    : put_some(static_cast<bf16*>(y) + at, result, count);
}

template <int BITS, class S>
struct FixedBlocks {
  static constexpr int ROWS = pillion::Packing::ROWS;
  // How far ahead weights are asked for, in bytes.
  static constexpr long AHEAD = 2048;

  const pillion::Quantized& a;
  const FixedRows& x;

  // y[m0 .. m0 + M] of the weight rows in the lanes from `lane` on.
  template <int M>
  void tile(const char* block, int n, int lane, int m0) const {
    const pillion::Packing& p = a.packing;
    constexpr int UNROLLED = BITS;  // words of 32 weights
    Vec total[M];
    for (auto& t : total) t = zero();
    const std::uint32_t* row_words = x.words(m0);
    const int words = p.group_words();
    for (int g = 0; g < x.groups; g++) {
      const auto* at = reinterpret_cast<const std::uint32_t*>(block) + lane;
      Product sums[M];
      for (int from = 0; from < words; from += UNROLLED, at += UNROLLED * ROWS) {
        for (int i = 0; i < UNROLLED; i++) {
          if constexpr (M <= PREFETCHED_ROWS) __builtin_prefetch(at + i * ROWS + AHEAD / 4);
          each_four<BITS>(load_words(at + i * ROWS), [&](Ints bytes) {
            const Four four(bytes);
            for (int m = 0; m < M; m++) {
              sums[m].add(four, row_words[2 * m], row_words[2 * m + 1]);
            }
            row_words += 2 * M;
          });
        }
      }
      const S* scales = reinterpret_cast<const S*>(block + words * ROWS * 4L) + lane;
      const Vec scale = load(scales), bias = load(scales + ROWS);
      const float *of_rows = x.scales(g) + m0, *sums_of_rows = x.sums(g) + m0;
      for (int m = 0; m < M; m++) {
        total[m] = fma(to_floats(sums[m].sum()), scale * all(of_rows[m]), total[m]);
        total[m] = fma(bias, all(sums_of_rows[m]), total[m]);
      }
      block += p.group_bytes();
    }
    const int left = p.width - n < W ? p.width - n : W;
    for (int m = 0; m < M; m++) {
      put_results(a.y, a.type, static_cast<long>(m0 + m) * p.width + n, total[m], left);
    }
  }

  template <int M>
  void rest(const char* block, int n, int lane, int m0) const {
    if constexpr (M > 0) {
      x.rows - m0 == M ? tile<M>(block, n, lane, m0) : rest<M - 1>(block, n, lane, m0);
    }
  }

  void multiply() const {
    const char* block = a.w;
    for (int n0 = 0; n0 < a.packing.width; n0 += ROWS, block += a.packing.block_bytes()) {
      for (int lane = 0; lane < ROWS && n0 + lane < a.packing.width; lane += W) {
        int m = 0;
        for (; m + SHARING <= x.rows; m += SHARING) tile<SHARING>(block, n0 + lane, lane, m);
        rest<SHARING - 1>(block, n0 + lane, lane, m);
      }
    }
  }
};

// Calls the function that fits bits and scales.
template <template <int, class> class Blocks, class... Arguments>
inline void multiply_packed(const pillion::Packing& p, const Arguments&... arguments) {
  const bool four = p.bits == 4;
  switch (p.scale_type) {
    case Type::f32:
      return four ? Blocks<4, float>{arguments...}.multiply()
                  : Blocks<8, float>{arguments...}.multiply();
    case Type::bf16:
      return four ? Blocks<4, bf16>{arguments...}.multiply()
                  : Blocks<8, bf16>{arguments...}.multiply();
    case Type::f16:
      return four ? Blocks<4, f16>{arguments...}.multiply()
                  : Blocks<8, f16>{arguments...}.multiply();
  }
}

void quantized(const pillion::Quantized& a) {
  const FixedRows x(a.type, a.x, a.rows, a.packing.depth, a.packing.group);
  multiply_packed<FixedBlocks>(a.packing, a, x);
}

}  // namespace
