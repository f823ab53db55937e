// How four numbers in fixed point (fixed_point.h) become two words, by what multiplies them.

#pragma once

#include <cstdint>

namespace {

// Their high bytes and their low ones, each signed: q = 256 * high + low.
struct ByteWords {
  static void encode(const int* q, int count, std::uint32_t* first, std::uint32_t* second) {
    auto *high = reinterpret_cast<char*>(first), *low = reinterpret_cast<char*>(second);
    for (int i = 0; i < count; i++) {
      high[i] = static_cast<char>((q[i] + 128) >> 8);
      low[i] = static_cast<char>(q[i]);
    }
  }
};

// The first and the third, the second and the fourth, in 16 bits each.
struct PairWords {
  static void encode(const int* q, int count, std::uint32_t* first, std::uint32_t* second) {
    const auto* words = reinterpret_cast<const std::uint32_t*>(q);
    for (int i = 0; i < count / 4; i++) {
      first[i] = (words[4 * i] & 0xffff) | words[4 * i + 2] << 16;
      second[i] = (words[4 * i + 1] & 0xffff) | words[4 * i + 3] << 16;
    }
  }
};

}  // namespace
