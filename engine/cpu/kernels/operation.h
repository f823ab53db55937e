// MLX operations out of kernels: lazy, on MLX's own CPU stream, one thread.

#pragma once

#include <cmath>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <memory>
#include <stdexcept>
#include <vector>

#include "mlx/allocator.h"
#include "mlx/backend/cpu/encoder.h"
#include "mlx/primitives.h"
#include "table.h"

namespace nb = nanobind;
namespace mx = mlx::core;
using Arrays = std::vector<mx::array>;

namespace pillion {

// Of the instruction set that was chosen; throws where none was.
const Kernels& kernels();

inline Type type_of(const mx::array& a) {
  if (a.dtype() == mx::float32) return Type::f32;
  if (a.dtype() == mx::bfloat16) return Type::bf16;
  if (a.dtype() == mx::float16) return Type::f16;
  throw std::invalid_argument("the kernels know float32, bfloat16 and float16 only");
}

// An input as it lies in memory when the operation runs.
struct View {
  const char* data;
  mx::Shape shape;
  mx::Strides strides;
  bool dense;
  std::size_t item;

  explicit View(const mx::array& a)
      : data(a.data<char>()),
        shape(a.shape()),
        strides(a.strides()),
        dense(a.flags().row_contiguous),
        item(a.itemsize()) {}

  int dim(int axis) const {
    return shape[axis < 0 ? static_cast<int>(shape.size()) + axis : axis];
  }
  long stride(int axis) const {
    return strides[axis < 0 ? static_cast<int>(shape.size()) + axis : axis];
  }
  bool rows_are_dense() const {
    return dim(-1) == 1 || stride(-1) == 1;
  }
  const char* at(std::initializer_list<long> index) const {
    long offset = 0;
    int axis = 0;
    for (long i : index) offset += i * strides[axis++];
    return data + offset * static_cast<long>(item);
  }
};

// The elements in row-major order: the input itself where it is that already, else a copy.
class Packed {
 public:
  explicit Packed(const View& view) : data_(view.data) {
    if (view.dense) return;
    std::size_t count = view.item;
    for (int n : view.shape) count *= static_cast<std::size_t>(n);
    copy_.resize(count);
    char* into = copy_.data();
    copy(view, 0, view.data, into);
    data_ = copy_.data();
  }
  const void* data() const {
    return data_;
  }

 private:
  static void copy(const View& view, std::size_t axis, const char* from, char*& into) {
    const bool last = axis + 1 == view.shape.size();
    const long step = view.strides[axis] * static_cast<long>(view.item);
    if (last && view.strides[axis] == 1) {
      const std::size_t bytes = view.item * static_cast<std::size_t>(view.shape[axis]);
      std::memcpy(into, from, bytes);
      into += bytes;
      return;
    }
    for (int i = 0; i < view.shape[axis]; i++, from += step) {
      if (last) {
        std::memcpy(into, from, view.item);
        into += view.item;
      } else {
        copy(view, axis + 1, from, into);
      }
    }
  }

  const char* data_;
  std::vector<char> copy_;
};

using Views = std::vector<View>;
using Outputs = std::vector<char*>;
using Body = std::function<void(const Views&, const Outputs&)>;

class Operation : public mx::Primitive {
 public:
  Operation(mx::Stream stream, const char* name, Body body)
      : Primitive(stream), name_(name), body_(std::move(body)) {}

  void eval_cpu(const Arrays& inputs, Arrays& outputs) override {
    Outputs into;
    for (auto& output : outputs) {
      output.set_data(mx::allocator::malloc(output.nbytes()));
      into.push_back(output.data<char>());
    }
    Views views(inputs.begin(), inputs.end());
    mx::cpu::get_command_encoder(stream()).dispatch(
        [body = body_, views = std::move(views), into = std::move(into)] { body(views, into); });
  }
  void eval_gpu(const Arrays&, Arrays&) override {
    throw std::runtime_error("these kernels run on a CPU only");
  }
  const char* name() const override {
    return name_;
  }

 private:
  const char* name_;
  Body body_;
};

inline Arrays operation(const char* name, std::vector<mx::Shape> shapes,
                        std::vector<mx::Dtype> dtypes, Arrays inputs, Body body) {
  auto stream = mx::default_stream(mx::Device::cpu);
  return mx::array::make_arrays(std::move(shapes), std::move(dtypes),
                                std::make_shared<Operation>(stream, name, std::move(body)),
                                std::move(inputs));
}

inline mx::array one(const char* name, mx::Shape shape, mx::Dtype dtype, Arrays inputs, Body body) {
  return operation(name, {std::move(shape)}, {dtype}, std::move(inputs), std::move(body))[0];
}

inline void require(bool right, const char* what) {
  if (!right) throw std::invalid_argument(what);
}

inline int rows_of(const mx::array& x) {
  return x.shape(-1) == 0 ? 0 : static_cast<int>(x.size() / x.shape(-1));
}

inline mx::Shape with_last(mx::Shape shape, int last) {
  shape.back() = last;
  return shape;
}

// A sequence of the batch: where its part of an input begins.
inline const char* part(const Packed& packed, const View& view, int sequence) {
  long size = static_cast<long>(view.item);
  for (std::size_t axis = 1; axis < view.shape.size(); axis++) size *= view.shape[axis];
  return static_cast<const char*>(packed.data()) + sequence * size;
}

// Of the rotations at one position: `half` cosines and sines.
inline void rope_angles(int half, float base, float scale, int position, float* cosines,
                        float* sines) {
  for (int i = 0; i < half; i++) {
    const float rate =
        std::exp2f(-static_cast<float>(i) / static_cast<float>(half) * std::log2(base));
    const float angle = static_cast<float>(position) * scale * rate;
    cosines[i] = std::cos(angle);
    sines[i] = std::sin(angle);
  }
}

}  // namespace pillion
