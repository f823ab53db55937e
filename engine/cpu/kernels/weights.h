// A layer's weight matrix, as an operation holds it.

#pragma once

#include <cstdlib>
#include <memory>
#include <new>

#include "mlx/ops.h"
#include "operation.h"
#include "packing.h"

namespace pillion {

inline mx::array settled(const mx::array& a) {
  mx::array dense = mx::contiguous(a);
  dense.eval();
  return dense;
}

// (N, K): dense, or in the kernels' own packing, made of words, scales and biases as MLX has them.
// Those are not kept.
class Weights {
 public:
  Weights(const Arrays& parts, int group, int bits) {
    require(parts.size() == 1 || parts.size() == 3, "weights: one array, or three if quantised");
    require(parts[0].ndim() == 2, "weights: w (N, K), or (N, K * bits / 32) if quantised");
    packing_.width = parts[0].shape(0);
    if (parts.size() == 1) {
      packing_.depth = parts[0].shape(1);
      dense_.push_back(settled(parts[0]));
    } else {
      pack_quantized(parts, group, bits);
    }
  }
  int width() const {
    return packing_.width;
  }
  int depth() const {
    return packing_.depth;
  }

  void multiply(const Kernels& run, Type type, const void* x, void* y, int rows) const {
    const int depth = packing_.depth, width = packing_.width;
    if (packed_) {
      run.quantized({type, packing_, {x, depth}, packed_.get(), y, rows});
    } else {
      run.dense({type, {x, depth}, {dense_[0].data<char>(), depth}, y, rows, depth, width});
    }
  }

  // y (..., N) of x (..., K), lazily.
  mx::array operator()(const mx::array& x) const {
    require(x.ndim() >= 1 && x.shape(-1) == packing_.depth, "weights: x (..., K)");
    require(type_of(x) != Type::f16, "weights: x in float32 or bfloat16");
    return one("PillionMultiply", with_last(x.shape(), packing_.width), x.dtype(), {x},
               [self = *this, rows = rows_of(x), type = type_of(x), &run = kernels()](
                   const Views& in, const Outputs& out) {
                 Packed x_in(in[0]);
                 self.multiply(run, type, x_in.data(), out[0], rows);
               });
  }

  // Words, scales and biases of some rows as MLX has them, lazily; of all rows without `ids`.
  Arrays rows(const std::optional<mx::array>& ids) const {
    require(packed_ != nullptr, "weights: rows of quantised ones only");
    Arrays inputs;
    if (ids) inputs.push_back(mx::astype(*ids, mx::int64));
    const mx::Shape front = ids ? ids->shape() : mx::Shape{packing_.width};
    const auto shape = [&](int last) {
      mx::Shape whole = front;
      whole.push_back(last);
      return whole;
    };
    const int groups = packing_.groups(), words = groups * packing_.group_words();
    const long count = ids ? static_cast<long>(ids->size()) : packing_.width;
    return operation(
        "PillionRows", {shape(words), shape(groups), shape(groups)},
        {mx::uint32, scale_dtype_, scale_dtype_}, inputs,
        [self = *this, count, words, groups](const Views& in, const Outputs& out) {
          std::optional<Packed> ids_in;
          if (!in.empty()) ids_in.emplace(in[0]);
          const long item = self.packing_.item();
          for (long i = 0; i < count; i++) {
            long row = ids_in ? static_cast<const std::int64_t*>(ids_in->data())[i] : i;
            // As MLX has it: negative ones count from the end, others are the caller's business.
            if (row < 0) row += self.packing_.width;
            if (row < 0 || row >= self.packing_.width) continue;
            unpack_row(self.packing_, self.packed_.get(), row,
                       reinterpret_cast<std::uint32_t*>(out[0]) + i * words,
                       out[1] + i * groups * item, out[2] + i * groups * item);
          }
        });
  }

 private:
  void pack_quantized(const Arrays& parts, int group, int bits) {
    const auto &w = parts[0], &scales = parts[1], &biases = parts[2];
    require(bits == 4 || bits == 8, "weights: 4 or 8 bits");
    require(group == 32 || group == 64 || group == 128, "weights: groups of 32, 64 or 128");
    const int groups = scales.ndim() == 2 ? scales.shape(1) : 0;
    packing_ = {type_of(scales), bits, group, groups * group, w.shape(0)};
    require(w.dtype() == mx::uint32 && w.shape(1) == packing_.depth * bits / 32 &&
                scales.shape() == mx::Shape({w.shape(0), groups}) &&
                biases.shape() == scales.shape() && biases.dtype() == scales.dtype(),
            "weights: w (N, K * bits / 32), scales and biases (N, K / group)");
    scale_dtype_ = scales.dtype();
    const mx::array words = settled(w), s = settled(scales), b = settled(biases);
    // A block is a multiple of this, and no vector of it lies across two cache lines.
    const auto bytes = static_cast<std::size_t>((packing_.bytes() + 63) / 64 * 64);
    char* memory = static_cast<char*>(std::aligned_alloc(64, bytes > 0 ? bytes : 64));
    if (memory == nullptr) throw std::bad_alloc();
    packed_ = {memory, std::free};
    pack(packing_, words.data<std::uint32_t>(), s.data<char>(), b.data<char>(), memory);
  }

  Arrays dense_;
  Packing packing_{};
  mx::Dtype scale_dtype_ = mx::float32;
  std::shared_ptr<char> packed_;
};

}  // namespace pillion
