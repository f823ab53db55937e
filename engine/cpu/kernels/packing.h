// How quantised weights lie in memory for the kernels: in the order in which they are read.
//
// Sixteen rows make a block, and behind the last row are rows of zeros. A block is one group of the
// depth after the other: the words of the group (each word of all sixteen rows, then the next), the
// sixteen scales, the sixteen biases. So a vector holds one word of each row, and sums over the
// depth never cross its lanes.
//
// A word holds weights as MLX packs them, but of 4-bit weights the first four are the low halves
// of its bytes and the others the high ones, so that one mask makes four bytes of them.

#pragma once

#include <cstring>

#include "table.h"

namespace pillion {

inline std::uint32_t spread_nibbles(std::uint32_t four) {
  four = (four | four << 8) & 0x00ff00ff;
  return (four | four << 4) & 0x0f0f0f0f;
}

inline std::uint32_t gathered_nibbles(std::uint32_t bytes) {
  bytes = (bytes | bytes >> 4) & 0x00ff00ff;
  return (bytes | bytes >> 8) & 0x0000ffff;
}

inline std::uint32_t packed_word(std::uint32_t word, int bits) {
  if (bits == 8) return word;
  return spread_nibbles(word & 0xffff) | spread_nibbles(word >> 16) << 4;
}

inline std::uint32_t unpacked_word(std::uint32_t word, int bits) {
  if (bits == 8) return word;
  return gathered_nibbles(word & 0x0f0f0f0f) | gathered_nibbles(word >> 4 & 0x0f0f0f0f) << 16;
}

// Calls `visit(word, number)` for each word of a row as it is packed, and `constants(scale, bias,
// number)` for each group: both as pointers into the block.
template <class Words, class Constants>
void each_of_row(const Packing& p, char* packed, long row, Words visit, Constants constants) {
  const long item = p.item(), lane = row % Packing::ROWS;
  for (int g = 0; g < p.groups(); g++) {
    char* group = packed + row / Packing::ROWS * p.block_bytes() + g * p.group_bytes();
    for (int i = 0; i < p.group_words(); i++) {
      visit(group + (static_cast<long>(i) * Packing::ROWS + lane) * 4, g * p.group_words() + i);
    }
    char* scales = group + p.group_words() * Packing::ROWS * 4L;
    constants(scales + lane * item, scales + (Packing::ROWS + lane) * item, g);
  }
}

// Row by row from MLX's arrays: w (N, K * bits / 32), scales and biases (N, K / group).
inline void pack(const Packing& p, const std::uint32_t* w, const char* scales, const char* biases,
                 char* into) {
  std::memset(into, 0, static_cast<std::size_t>(p.bytes()));
  const auto item = static_cast<std::size_t>(p.item());
  const long words = static_cast<long>(p.groups()) * p.group_words();
  for (long row = 0; row < p.width; row++) {
    const std::size_t at = static_cast<std::size_t>(row * p.groups());
    each_of_row(
        p, into, row,
        [&](char* to, int i) {
          const std::uint32_t word = packed_word(w[row * words + i], p.bits);
          std::memcpy(to, &word, 4);
        },
        [&](char* scale, char* bias, int g) {
          std::memcpy(scale, scales + (at + static_cast<std::size_t>(g)) * item, item);
          std::memcpy(bias, biases + (at + static_cast<std::size_t>(g)) * item, item);
        });
  }
}

// One row as MLX has it: the inverse of `pack`.
inline void unpack_row(const Packing& p, const char* packed, long row, std::uint32_t* w,
                       char* scales, char* biases) {
  const auto item = static_cast<std::size_t>(p.item());
  each_of_row(
      p, const_cast<char*>(packed), row,
      [&](const char* from, int i) {
        std::uint32_t word;
        std::memcpy(&word, from, 4);
        w[i] = unpacked_word(word, p.bits);
      },
      [&](const char* scale, const char* bias, int g) {
        std::memcpy(scales + static_cast<std::size_t>(g) * item, scale, item);
        std::memcpy(biases + static_cast<std::size_t>(g) * item, bias, item);
      });
}

}  // namespace pillion
