// The products of fixed_point.h on AMX tiles of bytes, for more than a few rows.
//
// The left-hand tile is the planes of eight rows of x, high and low bytes in turn, where they lie.
// The right-hand one is the weights of sixteen rows, unpacked. What comes out are the same integers
// as in vectors, at a fraction of the cost.

#pragma once

namespace {

template <int BITS, class S>
class FixedTiles {
 public:
  FixedTiles(const pillion::Quantized& a, const FixedRows& x)
      : a_(a), x_(x), p_(a.packing), weights_(p_.depth / 64 + 1) {}

  void multiply() {
    const Tiles shapes(of_tiles());
    const int whole = x_.rows / (2 * IN_TILE) * (2 * IN_TILE), left = x_.rows - whole;
    block_ = a_.w;
    for (n_ = 0; n_ < p_.width; n_ += ROWS, block_ += p_.block_bytes()) {
      for (int m = 0; m < whole; m += 2 * IN_TILE) add_rows<2 * IN_TILE>(m);
      if (left > IN_TILE) {
        add_rows<2 * IN_TILE>(whole);
      } else if (left > 0) {
        add_rows<IN_TILE>(whole);
      }
    }
  }

  static constexpr int IN_TILE = 8;

 private:
  static constexpr int ROWS = pillion::Packing::ROWS;
  static constexpr long AHEAD = 4096;
  static constexpr int LAG = 1;

  // 0, 1: sums; 2, 3: x; 4: weights.
  Tiles::Shapes of_tiles() const {
    Tiles::Shapes shapes;
    if (p_.group < 64) {
      shapes.row_bytes[2] = shapes.row_bytes[3] = static_cast<std::uint16_t>(p_.group);
      shapes.rows[4] = static_cast<std::uint8_t>(p_.group / 4);
    }
    return shapes;
  }

  char* weights_at(int group) const {
    return weights_.data + static_cast<long>(group) * p_.group * ROWS;
  }

  void unpack(int group) const {
    const auto* from =
        reinterpret_cast<const std::uint32_t*>(block_ + group * p_.group_bytes());
    char* into = weights_at(group);
    for (int i = 0; i < p_.group_words(); i++, from += ROWS) {
      __builtin_prefetch(from + AHEAD / 4);
      each_four<BITS>(load_words(from), [&](Ints bytes) {
        _mm512_store_si512(into, bytes);
        into += 64;
      });
    }
  }

  template <bool TWO>
  void multiply_group(int m, int group, int* sums) const {
    const char *rows = x_.plane(2 * m) + group * p_.group, *weights = weights_at(group);
    const long more = 2L * IN_TILE * x_.depth;
    _tile_zero(0);
    if constexpr (TWO) _tile_zero(1);
    for (int from = 0; from < p_.group; from += 64) {
      _tile_loadd(4, weights + from * ROWS, 64);
      _tile_loadd(2, rows + from, x_.depth);
      _tile_dpbsud(0, 2, 4);
      if constexpr (TWO) {
        _tile_loadd(3, rows + more + from, x_.depth);
        _tile_dpbsud(1, 3, 4);
      }
    }
    _tile_stored(0, sums, 64);
    if constexpr (TWO) _tile_stored(1, sums + TILE * TILE, 64);
  }

  // Tiles cannot take what was just stored before it is in the cache, so a group is unpacked two
  // turns before it is multiplied, and added up one turn later. Behind the last row of x come rows
  // of zeros: a form for every number of rows would take half a minute to compile.
  template <int M>
  void add_rows(int m0) const {
    alignas(64) int sums[LAG + 1][2 * TILE * TILE];
    Vec total[M];
#pragma GCC unroll 16
    for (int m = 0; m < M; m++) total[m] = zero();
    if (m0 == 0) {
      for (int g = 0; g < 2 && g < x_.groups; g++) unpack(g);
    }
    for (int turn = 0; turn < x_.groups + LAG; turn++) {
      if (m0 == 0 && turn + 2 < x_.groups) unpack(turn + 2);
      if (turn < x_.groups) multiply_group<(M > IN_TILE)>(m0, turn, sums[turn % (LAG + 1)]);
      const int g = turn - LAG;
      if (g < 0) continue;
      const int* from = sums[g % (LAG + 1)];
      const S* scales = reinterpret_cast<const S*>(block_ + g * p_.group_bytes() +
                                                   p_.group_words() * ROWS * 4L);
      const Vec scale = load(scales), bias = load(scales + ROWS);
      const float *of_rows = x_.scales(g) + m0, *sums_of_rows = x_.sums(g) + m0;
#pragma GCC unroll 16
      for (int m = 0; m < M; m++) {
        const Ints high = _mm512_load_si512(from + 2 * m * TILE),
                   low = _mm512_load_si512(from + (2 * m + 1) * TILE);
        total[m] = fma(to_floats(plus(shifted_left<8>(high), low)), scale * all(of_rows[m]),
                       total[m]);
        total[m] = fma(bias, all(sums_of_rows[m]), total[m]);
      }
    }
    const int left = p_.width - n_ < W ? p_.width - n_ : W;
#pragma GCC unroll 16
    for (int m = 0; m < M; m++) {
      if (m0 + m >= x_.rows) break;
      put_results(a_.y, a_.type, static_cast<long>(m0 + m) * p_.width + n_, total[m], left);
    }
  }

  const pillion::Quantized& a_;
  const FixedRows& x_;
  const pillion::Packing& p_;
  TileBuffer weights_;
  const char* block_ = nullptr;
  int n_ = 0;
};

// Below that many rows unpacking the weights into tiles takes longer than it saves.
constexpr int ROWS_FOR_TILES = 5;

void quantized_on_tiles(const pillion::Quantized& a) {
  if (a.rows < ROWS_FOR_TILES) return pillion::avx512_vnni_quantized(a);
  // Whole tiles are read.
  const int padded = (a.rows + 7) / 8 * 8;
  const FixedRows x(a.type, a.x, a.rows, a.packing.depth, a.packing.group, padded);
  multiply_packed<FixedTiles>(a.packing, a, x);
}

}  // namespace
