// Matrix multiplications on AMX tiles, for bfloat16 and quantised weights.
//
// A tile instruction takes 16 weight rows and 32 steps of the depth at once, for up to 16 rows of
// x at the cost of one: below that a verify forward costs what a step does. The sums over the depth
// are in tile order for any number of rows. Subnormal numbers count as zero, as the tiles have it.
//
// float32 rows are split in two bfloat16 parts, which together hold 16 of their 24 bits, and become
// two columns of a tile; quantised weights are small integers, exact in bfloat16, and are scaled
// afterwards, group by group, in float32.

#pragma once

namespace {

constexpr int TILE = 16;
constexpr int DEPTH = 32;  // of a tile, in elements
constexpr long TILE_BYTES = 1024;

// The tiles' shapes are a state of the thread, which goes back to having none: a thread with tiles
// in use is dearer to switch.
class Tiles {
 public:
  Tiles() {
    struct alignas(64) {
      std::uint8_t palette = 1, start = 0, reserved[14] = {};
      std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    } shapes;
    _tile_loadconfig(&shapes);
  }
  ~Tiles() {
    _tile_release();
  }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;
};

struct TileBuffer {
  char* data;
  explicit TileBuffer(long tiles)
      : data(static_cast<char*>(
            std::aligned_alloc(64, static_cast<unsigned long>(tiles * TILE_BYTES)))) {
    if (data == nullptr) std::abort();
  }
  ~TileBuffer() {
    std::free(data);
  }
  TileBuffer(const TileBuffer&) = delete;
  TileBuffer& operator=(const TileBuffer&) = delete;
  char* at(long tile) const {
    return data + tile * TILE_BYTES;
  }
};

// In how many bfloat16 parts a row of x goes into tiles.
template <class T>
constexpr int parts_of = 2;
template <>
constexpr int parts_of<bf16> = 1;

inline Ints every_16th() {
  return _mm512_setr_epi32(0, 16, 32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240);
}

// In which order the weights of a step lie in a tile, and so in which x has to.
enum class Order { as_is, nibbles };

template <Order ORDER>
inline void put_column(char* tile, int column, Ints pairs) {
  if constexpr (ORDER == Order::nibbles) {
    // Element 4 l + j is nibble j of the l-th 16 bits.
    const Ints from = _mm512_set_epi16(31, 27, 23, 19, 15, 11, 7, 3, 30, 26, 22, 18, 14, 10, 6, 2,
                                       29, 25, 21, 17, 13, 9, 5, 1, 28, 24, 20, 16, 12, 8, 4, 0);
    pairs = _mm512_permutexvar_epi16(from, pairs);
  }
  _mm512_i32scatter_epi32(reinterpret_cast<int*>(tile) + column, every_16th(), pairs, 4);
}

template <Order ORDER>
inline void put_elements(char* tile, int column, const bf16* x, int n) {
  const auto mask = static_cast<__mmask32>((1ull << n) - 1);
  put_column<ORDER>(tile, column, _mm512_maskz_loadu_epi16(mask, x));
}

template <Order ORDER>
inline void put_elements(char* tile, int column, const float* x, int n) {
  const Vec low = load(x, n < W ? n : W), high = n > W ? load(x + W, n - W) : zero();
  const Ints first_part = reinterpret_cast<Ints>(_mm512_cvtne2ps_pbh(high, low));
  const Vec low_rest = low - widened(_mm512_castsi512_si256(first_part), bf16{});
  const Vec high_rest = high - widened(_mm512_extracti64x4_epi64(first_part, 1), bf16{});
  put_column<ORDER>(tile, column, first_part);
  put_column<ORDER>(tile, column + TILE / 2,
                    reinterpret_cast<Ints>(_mm512_cvtne2ps_pbh(high_rest, low_rest)));
}

// Rows of x as the columns of right-hand tiles, block of rows by block, step of the depth by step.
template <class T, Order ORDER>
struct TiledRows {
  static constexpr int ROWS = TILE / parts_of<T>;
  int blocks, steps;
  TileBuffer tiles;

  TiledRows(Matrix x, int rows, int depth)
      : blocks((rows + ROWS - 1) / ROWS),
        steps((depth + DEPTH - 1) / DEPTH),
        tiles(static_cast<long>(blocks) * steps) {
    if (rows % ROWS != 0) {
      __builtin_memset(at(blocks - 1, 0), 0, static_cast<unsigned long>(steps * TILE_BYTES));
    }
    for (int m = 0; m < rows; m++) {
      const T* row = static_cast<const T*>(x.data) + m * x.pitch;
      for (int k = 0; k < depth; k += DEPTH) {
        const int n = depth - k < DEPTH ? depth - k : DEPTH;
        put_elements<ORDER>(at(m / ROWS, k / DEPTH), m % ROWS, row + k, n);
      }
    }
  }

  char* at(int block, int step) const {
    return tiles.at(static_cast<long>(block) * steps + step);
  }
};

// Column m of the sums (16 x 16, one weight row after the other) is row m of the result, in two
// columns if x was; `count` weight rows are of the result.
template <class T>
inline void put_sums(const float* sums, T* y, long pitch, int rows, int count) {
  for (int m = 0; m < rows; m++) {
    Vec row = _mm512_i32gather_ps(every_16th(), sums + m, 4);
    if constexpr (parts_of<T> == 2) {
      row = row + _mm512_i32gather_ps(every_16th(), sums + m + TILE / 2, 4);
    }
    put_some(y + m * pitch, row, count);
  }
}

// --- dense ---------------------------------------------------------------------------------------

// 16 weight rows a tile, up to four of them side by side: sums of one tile alone would wait for
// each other.
template <int COUNT>
inline void dense_block(const bf16* w, long pitch, int depth, const char* ends,
                        const TiledRows<bf16, Order::as_is>& x, int block, float* sums) {
  _tile_zero(0);
  if constexpr (COUNT > 1) _tile_zero(1);
  if constexpr (COUNT > 2) _tile_zero(2);
  if constexpr (COUNT > 3) _tile_zero(3);
  for (int step = 0; step < x.steps; step++) {
    const bool whole = (step + 1) * DEPTH <= depth;
    const char* left = whole ? reinterpret_cast<const char*>(w + step * DEPTH) : ends;
    const long stride = whole ? pitch * 2 : 64, next = whole ? TILE * stride : TILE_BYTES;
    _tile_loadd(4, x.at(block, step), 64);
    _tile_loadd(5, left, stride);
    _tile_dpbf16ps(0, 5, 4);
    if constexpr (COUNT > 1) {
      _tile_loadd(6, left + next, stride);
      _tile_dpbf16ps(1, 6, 4);
    }
    if constexpr (COUNT > 2) {
      _tile_loadd(7, left + 2 * next, stride);
      _tile_dpbf16ps(2, 7, 4);
    }
    if constexpr (COUNT > 3) {
      _tile_loadd(5, left + 3 * next, stride);
      _tile_dpbf16ps(3, 5, 4);
    }
  }
  _tile_stored(0, sums, 64);
  if constexpr (COUNT > 1) _tile_stored(1, sums + 256, 64);
  if constexpr (COUNT > 2) _tile_stored(2, sums + 512, 64);
  if constexpr (COUNT > 3) _tile_stored(3, sums + 768, 64);
}

void multiply_tiles(const pillion::Dense& a) {
  const Tiles shapes;
  const TiledRows<bf16, Order::as_is> x(a.x, a.rows, a.depth);
  const bf16* w = static_cast<const bf16*>(a.w.data);
  const int whole = a.depth / DEPTH * DEPTH, width = a.width < TILE ? TILE : a.width;
  long pitch = a.w.pitch;
  TileBuffer ends(4), padded(a.width < TILE ? x.steps : 1);
  if (a.width < TILE) {
    // Too few rows for a tile: behind them come zeros.
    pitch = static_cast<long>(x.steps) * DEPTH;
    __builtin_memset(padded.data, 0, static_cast<unsigned long>(x.steps * TILE_BYTES));
    for (int n = 0; n < a.width; n++) {
      __builtin_memcpy(padded.data + n * pitch * 2, w + n * a.w.pitch,
                       static_cast<unsigned long>(a.depth) * 2);
    }
    w = reinterpret_cast<const bf16*>(padded.data);
  }
  for (int n = 0; n < width;) {
    // A last tile that would reach past the end starts earlier and computes some results again.
    const int left = width - n, from = left < TILE ? width - TILE : n;
    const int count = left < TILE ? 1 : left < 4 * TILE ? left / TILE : 4;
    n = from + count * TILE;
    if (whole < a.depth) {
      __builtin_memset(ends.data, 0, 4 * TILE_BYTES);
      for (int r = 0; r < count * TILE; r++) {
        __builtin_memcpy(ends.data + r * 64L, w + (from + r) * pitch + whole,
                         static_cast<unsigned long>(a.depth - whole) * 2);
      }
    }
    const auto run = count == 4   ? dense_block<4>
                     : count == 3 ? dense_block<3>
                     : count == 2 ? dense_block<2>
                                  : dense_block<1>;
    for (int block = 0; block < x.blocks; block++) {
      alignas(64) float sums[4 * TILE * TILE];
      run(w + from * pitch, pitch, a.depth, ends.data, x, block, sums);
      const int rows = a.rows - block * TILE < TILE ? a.rows - block * TILE : TILE;
      bf16* y = static_cast<bf16*>(a.y) + static_cast<long>(block) * TILE * a.width + from;
      for (int i = 0; i < count; i++) {
        put_sums(sums + i * TILE * TILE, y + i * TILE, a.width, rows,
                 a.width < TILE ? a.width : TILE);
      }
    }
  }
}

void dense_on_tiles(const pillion::Dense& a) {
  a.type == Type::bf16 ? multiply_tiles(a) : dense(a);
}

// --- quantised -----------------------------------------------------------------------------------

// 32 packed weights as bfloat16 integers, in the order of their width.
template <int BITS>
inline Ints integers(const char* packed);

template <>
inline Ints integers<4>(const char* packed) {
  // Of an index the table looks at five bits, and the fifth may be set: both halves are alike.
  const Ints table = _mm512_broadcast_i64x4(
      _mm256_setr_epi16(0x0000, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0, 0x4100,
                        0x4110, 0x4120, 0x4130, 0x4140, 0x4150, 0x4160, 0x4170));
  const Ints nibble = _mm512_setr_epi64(0, 0, 0x4000400040004, 0x4000400040004, 0x8000800080008,
                                        0x8000800080008, 0xc000c000c000c, 0xc000c000c000c);
  const Ints words =
      _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(packed)));
  return _mm512_permutexvar_epi16(_mm512_srlv_epi16(words, nibble), table);
}

template <>
inline Ints integers<8>(const char* packed) {
  const auto* halves = reinterpret_cast<const __m128i*>(packed);
  const Vec low = to_floats(_mm512_cvtepu8_epi32(_mm_loadu_si128(halves)));
  const Vec high = to_floats(_mm512_cvtepu8_epi32(_mm_loadu_si128(halves + 1)));
  return reinterpret_cast<Ints>(_mm512_cvtne2ps_pbh(high, low));
}

template <int BITS, class S, class T>
class QuantizedTiles {
 public:
  explicit QuantizedTiles(const pillion::Quantized& a)
      : a_(a),
        groups_(a.depth / a.group),
        in_group_(a.group / DEPTH),
        pitch_(groups_ + W),
        x_(a.x, a.rows, a.depth),
        sums_(static_cast<long>(x_.blocks) * groups_ * TILE),
        scales_(pitch_ * PAIR),
        biases_(pitch_ * PAIR),
        weights_(2L * in_group_ * (x_.blocks == 1 ? 2 * CHUNK : groups_)) {
    add_up_groups();
  }

  void multiply() {
    for (int n = 0; n < a_.width; n += PAIR) {
      // Behind the last weight row it is taken again, and the results are not stored.
      const int count = a_.width - n < PAIR ? a_.width - n : PAIR;
      for (int i = 0; i < PAIR; i++) {
        rows_[i] = n + (i < count ? i : count - 1);
        widen(static_cast<const S*>(a_.scales), i, scales_.data);
        widen(static_cast<const S*>(a_.biases), i, biases_.data);
      }
      for (int block = 0; block < x_.blocks; block++) {
        alignas(64) float results[PAIR * TILE] = {};
        add_groups(block, results);
        const int first = block * x_.ROWS,
                  rows = a_.rows - first < x_.ROWS ? a_.rows - first : x_.ROWS;
        T* y = static_cast<T*>(a_.y) + static_cast<long>(first) * a_.width + n;
        put_sums(results, y, a_.width, rows, count < TILE ? count : TILE);
        if (count > TILE) put_sums(results + TILE * TILE, y + TILE, a_.width, rows, count - TILE);
      }
    }
  }

 private:
  // Two tiles of weights share the loads of x, in two groups at once: four sums are under way, as
  // one alone would wait for itself.
  static constexpr int PAIR = 2 * TILE, CHUNK = 2;

  // For the biases: the sum of each group of x, in the column of its first part.
  void add_up_groups() {
    __builtin_memset(sums_.data, 0,
                     sizeof(float) * static_cast<unsigned long>(x_.blocks) * groups_ * TILE);
    for (int m = 0; m < a_.rows; m++) {
      const T* x = static_cast<const T*>(a_.x.data) + m * a_.x.pitch;
      float* column = sums_.data + static_cast<long>(m / x_.ROWS) * groups_ * TILE + m % x_.ROWS;
      for (int g = 0; g < groups_; g++) {
        Vec sum = zero();
        for (int k = 0; k < a_.group; k += W) sum = sum + load(x + g * a_.group + k);
        column[g * TILE] = _mm512_reduce_add_ps(sum);
      }
    }
  }

  void widen(const S* from, int i, float* into) const {
    const S* at = from + static_cast<long>(rows_[i]) * groups_;
    for (int g = 0; g < groups_; g += W) {
      const int n = groups_ - g < W ? groups_ - g : W;
      store(into + i * pitch_ + g, some(at + g, n));
    }
  }

  int end_of(int chunk) const {
    return (chunk + 1) * CHUNK < groups_ ? (chunk + 1) * CHUNK : groups_;
  }

  // The first tile of a group; the second tile of the pair is `in_group_` tiles further on.
  char* weights_at(int group) const {
    const int slot = x_.blocks == 1 ? group % (2 * CHUNK) : group;
    return weights_.at(2L * slot * in_group_);
  }

  void unpack(int chunk) const {
    const long row_bytes = static_cast<long>(a_.depth) * BITS / 8;
    const long group_bytes = static_cast<long>(a_.group) * BITS / 8;
    const int end = end_of(chunk);
    for (int group = chunk * CHUNK; group < end; group++) {
      char* tiles = weights_at(group);
      for (int i = 0; i < PAIR; i++) {
        const char* row =
            reinterpret_cast<const char*>(a_.w) + rows_[i] * row_bytes + group * group_bytes;
        // The next pair's weights come from memory.
        if (group % CHUNK == 0) _mm_prefetch(row + PAIR * row_bytes, _MM_HINT_T0);
        char* into = tiles + (i / TILE * in_group_) * TILE_BYTES + i % TILE * 64L;
        for (int step = 0; step < in_group_; step++) {
          _mm512_store_si512(into + step * TILE_BYTES, integers<BITS>(row + step * 4L * BITS));
        }
      }
    }
  }

  void multiply_chunk(int block, int chunk, float* sums) const {
    const int group = chunk * CHUNK;
    const bool two = end_of(chunk) - group == 2;
    const char *weights = weights_at(group), *more = two ? weights_at(group + 1) : nullptr;
    const long second = in_group_ * TILE_BYTES;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int step = 0; step < in_group_; step++) {
      const long at = step * TILE_BYTES;
      _tile_loadd(4, x_.at(block, group * in_group_ + step), 64);
      _tile_loadd(5, weights + at, 64);
      _tile_dpbf16ps(0, 5, 4);
      _tile_loadd(6, weights + second + at, 64);
      _tile_dpbf16ps(1, 6, 4);
      if (!two) continue;
      _tile_loadd(7, x_.at(block, (group + 1) * in_group_ + step), 64);
      _tile_loadd(5, more + at, 64);
      _tile_dpbf16ps(2, 5, 7);
      _tile_loadd(6, more + second + at, 64);
      _tile_dpbf16ps(3, 6, 7);
    }
    _tile_stored(0, sums, 64);
    _tile_stored(1, sums + 256, 64);
    _tile_stored(2, sums + 512, 64);
    _tile_stored(3, sums + 768, 64);
  }

  void add_chunk(int block, int chunk, const float* sums, float* results) const {
    const int first = chunk * CHUNK, count = end_of(chunk) - first;
    const float* of_x = sums_.data + (static_cast<long>(block) * groups_ + first) * TILE;
    const Vec shared[CHUNK] = {load(of_x), count > 1 ? load(of_x + TILE) : zero()};
    for (int i = 0; i < PAIR; i++) {
      const float *scale = scales_.data + i * pitch_ + first,
                  *bias = biases_.data + i * pitch_ + first;
      Vec total = load(results + i * TILE);
      for (int g = 0; g < count; g++) {
        total = fma(load(sums + g * 2 * TILE * TILE + i * TILE), all(scale[g]), total);
        total = fma(shared[g], all(bias[g]), total);
      }
      store(results + i * TILE, total);
    }
  }

  // Tiles cannot take what was just stored before it is in the cache, so a chunk is unpacked one
  // turn before it is multiplied, and added up one turn later.
  void add_groups(int block, float* results) const {
    alignas(64) float sums[2][2 * CHUNK * TILE * TILE];
    const int chunks = (groups_ + CHUNK - 1) / CHUNK;
    if (block == 0) unpack(0);
    for (int chunk = 0; chunk < chunks; chunk++) {
      if (block == 0 && chunk + 1 < chunks) unpack(chunk + 1);
      multiply_chunk(block, chunk, sums[chunk % 2]);
      if (chunk > 0) add_chunk(block, chunk - 1, sums[(chunk - 1) % 2], results);
    }
    add_chunk(block, chunks - 1, sums[(chunks - 1) % 2], results);
  }

  const pillion::Quantized& a_;
  int groups_, in_group_;
  long pitch_;
  TiledRows<T, BITS == 4 ? Order::nibbles : Order::as_is> x_;
  Scratch sums_, scales_, biases_;
  TileBuffer weights_;
  int rows_[PAIR];
};

template <int BITS, class S>
void multiply_quantized_tiles(const pillion::Quantized& a) {
  const Tiles shapes;
  if (a.type == Type::f32) {
    QuantizedTiles<BITS, S, float>(a).multiply();
  } else {
    QuantizedTiles<BITS, S, bf16>(a).multiply();
  }
}

template <int BITS>
void tiles_with_scales(const pillion::Quantized& a) {
  switch (a.scale_type) {
    case Type::f32:
      return multiply_quantized_tiles<BITS, float>(a);
    case Type::bf16:
      return multiply_quantized_tiles<BITS, bf16>(a);
    case Type::f16:
      return multiply_quantized_tiles<BITS, f16>(a);
  }
}

void quantized_on_tiles(const pillion::Quantized& a) {
  a.bits == 4 ? tiles_with_scales<4>(a) : tiles_with_scales<8>(a);
}

}  // namespace
