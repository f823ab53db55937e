// Dense matrix multiplications on AMX tiles, in bfloat16.
//
// A tile instruction takes 16 weight rows and 32 steps of the depth at once, for up to 16 rows of
// x at the cost of one: below that a verify forward costs what a step does. The sums over the depth
// are in tile order for any number of rows. Subnormal numbers count as zero, as the tiles have it.

#pragma once

namespace {

constexpr int TILE = 16;
constexpr int DEPTH = 32;  // of a tile, in elements
constexpr long TILE_BYTES = 1024;

// The tiles' shapes are a state of the thread, which goes back to having none: a thread with tiles
// in use is dearer to switch.
class Tiles {
 public:
  struct alignas(64) Shapes {
    std::uint8_t palette = 1, start = 0, reserved[14] = {};
    std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  };
  explicit Tiles(const Shapes& shapes) {
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

inline Ints every_16th() {
  return _mm512_setr_epi32(0, 16, 32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240);
}

inline void put_column(char* tile, int column, const bf16* x, int n) {
  const auto mask = static_cast<__mmask32>((1ull << n) - 1);
  _mm512_i32scatter_epi32(reinterpret_cast<int*>(tile) + column, every_16th(),
                          _mm512_maskz_loadu_epi16(mask, x), 4);
}

// Rows of x as the columns of right-hand tiles, block of rows by block, step of the depth by step.
struct TiledRows {
  int blocks, steps;
  TileBuffer tiles;

  TiledRows(Matrix x, int rows, int depth)
      : blocks((rows + TILE - 1) / TILE),
        steps((depth + DEPTH - 1) / DEPTH),
        tiles(static_cast<long>(blocks) * steps) {
    if (rows % TILE != 0) {
      __builtin_memset(at(blocks - 1, 0), 0, static_cast<unsigned long>(steps * TILE_BYTES));
    }
    for (int m = 0; m < rows; m++) {
      const bf16* row = static_cast<const bf16*>(x.data) + m * x.pitch;
      for (int k = 0; k < depth; k += DEPTH) {
        const int n = depth - k < DEPTH ? depth - k : DEPTH;
        put_column(at(m / TILE, k / DEPTH), m % TILE, row + k, n);
      }
    }
  }

  char* at(int block, int step) const {
    return tiles.at(static_cast<long>(block) * steps + step);
  }
};

// Column m of the sums (16 x 16, one weight row after the other) is row m of the result; `count`
// weight rows are of the result.
inline void put_sums(const float* sums, bf16* y, long pitch, int rows, int count) {
  for (int m = 0; m < rows; m++) {
    put_some(y + m * pitch, _mm512_i32gather_ps(every_16th(), sums + m, 4), count);
  }
}

// 16 weight rows a tile, up to four of them side by side: sums of one tile alone would wait for
// each other.
template <int COUNT>
inline void dense_block(const bf16* w, long pitch, int depth, const char* ends,
                        const TiledRows& x, int block, float* sums) {
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
  const Tiles whole_tiles(Tiles::Shapes{});
  const TiledRows x(a.x, a.rows, a.depth);
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
  a.type == Type::bf16 ? multiply_tiles(a) : pillion::avx512_kernels.dense(a);
}

}  // namespace
