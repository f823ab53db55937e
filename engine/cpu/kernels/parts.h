// The parts of a decoder layer that more than one kind of operation is made of.

#pragma once

#include <optional>
#include <tuple>
#include <utility>

#include "weights.h"

namespace pillion {

// Room for rows between two kernels.
class Room {
 public:
  Room(Type type, long count)
      : bytes_(static_cast<std::size_t>(count) * (type == Type::f32 ? 4 : 2)) {}
  char* data() {
    return bytes_.data();
  }

 private:
  std::vector<char> bytes_;
};

using Shared = std::shared_ptr<const Weights>;

struct Norm {
  mx::array weight;
  float eps;

  Norm(const mx::array& w, float e) : weight(settled(w)), eps(e) {}
  void apply(const Kernels& run, Type type, const void* x, void* y, int rows, int width,
             const void* gate = nullptr) const {
    run.rms_norm({type, x, weight.data<char>(), gate, y, eps, 1.0f, rows, width});
  }
};

using SharedNorm = std::shared_ptr<const Norm>;

// The rows of x behind the norm, in `into`; x itself where there is none.
inline const void* norm_rows(const SharedNorm& norm, const Kernels& run, Type type, const void* x,
                      Room& into, int rows, int width) {
  if (!norm) return x;
  norm->apply(run, type, x, into.data(), rows, width);
  return into.data();
}

// down(silu(gate(norm x)) * up(norm x)), and x added if `residual`; the norm may be null.
struct Mlp {
  SharedNorm norm;
  Shared gate, up, down;
  bool residual;

  mx::array operator()(const mx::array& x) const {
    require(x.ndim() >= 2 && x.shape(-1) == gate->depth(), "mlp: x (..., hidden)");
    return one("PillionMlp", x.shape(), x.dtype(), {x},
               [self = *this, rows = rows_of(x), type = type_of(x), &run = kernels()](
                   const Views& in, const Outputs& out) {
                 Packed x_in(in[0]);
                 self.apply(run, type, x_in.data(), out[0], rows);
               });
  }

  void apply(const Kernels& run, Type type, const void* x, char* y, int rows) const {
    const int width = gate->depth(), inner = gate->width();
    const long count = static_cast<long>(rows) * inner, all = static_cast<long>(rows) * width;
    Room normed(type, all), gates(type, count), ups(type, count);
    const void* from = norm_rows(norm, run, type, x, normed, rows, width);
    gate->multiply(run, type, from, gates.data(), rows);
    up->multiply(run, type, from, ups.data(), rows);
    run.swiglu({type, gates.data(), ups.data(), gates.data(), count});
    down->multiply(run, type, gates.data(), y, rows);
    if (residual) run.add({type, x, y, y, all});
  }
};

// All layers of a forward rotate by the same angles.
struct Angles {
  std::vector<float> cosines, sines;
  int half = 0, offset = 0, rows = 0;
  float base = 0, scale = 0;

  static const Angles& of(int half, float base, float scale, int offset, int rows) {
    thread_local Angles last;
    if (last.half != half || last.base != base || last.scale != scale || last.offset != offset ||
        last.rows != rows) {
      const std::size_t count = static_cast<std::size_t>(half) * static_cast<std::size_t>(rows);
      last = {
          std::vector<float>(count), std::vector<float>(count), half, offset, rows, base, scale};
      for (int t = 0; t < rows; t++) {
        rope_angles(half, base, scale, offset + t, last.cosines.data() + t * half,
                    last.sines.data() + t * half);
      }
    }
    return last;
  }
};

// What a layer's attention needs before its cache and behind it.
struct AttentionLayer {
  SharedNorm norm, q_norm, k_norm;  // each may be null
  Shared q, k, v, o;
  int heads, key_heads, width, rotated;
  float base, rope_scale, scale;
  bool gated;  // each head's queries are followed by its gate
  bool causal, residual;

  // Rotated queries (1, heads, T, width), keys and values (1, key_heads, T, width), and the gate
  // (1, T, heads * width), empty if there is none. x: (1, T, hidden).
  std::tuple<mx::array, mx::array, mx::array, mx::array> before(const mx::array& x,
                                                                int offset) const {
    require(x.ndim() == 3 && x.shape(0) == 1 && x.shape(2) == q->depth(),
            "attention layer: x (1, T, hidden)");
    const int rows = x.shape(1);
    auto made = operation("PillionQueries",
                          {{1, heads, rows, width},
                           {1, key_heads, rows, width},
                           {1, key_heads, rows, width},
                           {1, gated ? rows : 0, heads * width}},
                          {x.dtype(), x.dtype(), x.dtype(), x.dtype()}, {x},
                          [self = *this, rows, offset, type = type_of(x), &run = kernels()](
                              const Views& in, const Outputs& out) {
                            Packed x_in(in[0]);
                            self.project(run, type, x_in.data(), rows, offset, out);
                          });
    return {made[0], made[1], made[2], made[3]};
  }

  // Keys and values alone, as above.
  std::pair<mx::array, mx::array> keys_and_values(const mx::array& x, int offset) const {
    require(x.ndim() == 3 && x.shape(0) == 1 && x.shape(2) == k->depth(),
            "attention layer: x (1, T, hidden)");
    const mx::Shape shape{1, key_heads, x.shape(1), width};
    auto made = operation("PillionKeys", {shape, shape}, {x.dtype(), x.dtype()}, {x},
                          [self = *this, rows = x.shape(1), offset, type = type_of(x),
                           &run = kernels()](const Views& in, const Outputs& out) {
                            Packed x_in(in[0]);
                            self.project(run, type, x_in.data(), rows, offset,
                                         {nullptr, out[0], out[1], nullptr});
                          });
    return {made[0], made[1]};
  }

  // o(attention), gated if there is a gate, and x added if `residual`. keys, values: (1, key_heads,
  // K, width).
  mx::array after(const mx::array& x, const mx::array& queries, const mx::array& keys,
                  const mx::array& values, const mx::array& gate) const {
    const int rows = x.shape(1), seen = keys.shape(2);
    require(keys.shape() == values.shape() && keys.shape(1) == key_heads && seen >= rows &&
                keys.shape(3) == width && queries.shape() == mx::Shape({1, heads, rows, width}) &&
                keys.dtype() == x.dtype() && values.dtype() == x.dtype() &&
                queries.dtype() == x.dtype(),
            "attention layer: keys and values (1, key_heads, K, width) in x's type");
    return one("PillionAttend", {1, rows, o->width()}, x.dtype(), {x, queries, keys, values, gate},
               [self = *this, rows, seen, type = type_of(x), &run = kernels()](const Views& in,
                                                                               const Outputs& out) {
                 self.attend(run, type, rows, seen, in, out[0]);
               });
  }

  // Rotated queries, keys, values and gates, of which those that are null are left out.
  void project(const Kernels& run, Type type, const void* x, int rows, int offset,
               const Outputs& out) const {
    const std::size_t item = type == Type::f32 ? 4 : 2,
                      head = item * static_cast<std::size_t>(width);
    const int hidden = q->depth(), all_heads = heads * (gated ? 2 : 1);
    const long most = static_cast<long>(all_heads > key_heads ? all_heads : key_heads) * width;
    Room normed(type, static_cast<long>(rows) * hidden), projected(type, rows * most);
    const Angles& angles = Angles::of(rotated / 2, base, rope_scale, offset, rows);
    x = norm_rows(norm, run, type, x, normed, rows, hidden);
    const auto spread = [&](const Shared& weights, const SharedNorm& head_norm, int count, int step,
                            bool rotate, char* into) {
      weights->multiply(run, type, x, projected.data(), rows);
      for (int t = 0; t < rows; t++) {
        const float *cosine = angles.cosines.data() + t * (rotated / 2),
                    *sine = angles.sines.data() + t * (rotated / 2);
        for (int h = 0; h < count; h++) {
          char* from = projected.data() +
                       (static_cast<long>(t) * count + h) * step * static_cast<long>(head);
          char* to = into + (static_cast<long>(h) * rows + t) * static_cast<long>(head);
          if (head_norm) head_norm->apply(run, type, from, from, 1, width);
          if (rotate) {
            run.rotate({type, from, to, cosine, sine, rotated, width});
          } else {
            std::memcpy(to, from, head);
          }
        }
      }
    };
    if (out[0] != nullptr) spread(q, q_norm, heads, gated ? 2 : 1, true, out[0]);
    if (out[0] != nullptr && gated) {
      for (long i = 0; i < static_cast<long>(rows) * heads; i++) {
        std::memcpy(out[3] + i * static_cast<long>(head),
                    projected.data() + (2 * i + 1) * static_cast<long>(head), head);
      }
    }
    spread(k, k_norm, key_heads, 1, true, out[1]);
    spread(v, nullptr, key_heads, 1, false, out[2]);
  }

 private:
  void attend(const Kernels& run, Type type, int rows, int seen, const Views& in, char* y) const {
    const long item = type == Type::f32 ? 4 : 2, all = static_cast<long>(heads) * width;
    Packed x(in[0]), queries(in[1]), gate(in[4]);
    Room attended(type, rows * all);
    // A cache's rows are read where they lie; anything stranger is copied first.
    std::optional<Packed> copies[2];
    const auto head_of = [&](int which, int h) -> Matrix {
      const View& view = in[2 + which];
      if (view.rows_are_dense()) return {view.at({0, h}), view.stride(2)};
      if (!copies[which]) copies[which].emplace(view);
      return {static_cast<const char*>(copies[which]->data()) +
                  static_cast<long>(h) * seen * width * item,
              width};
    };
    for (int h = 0; h < heads; h++) {
      const int kv = h / (heads / key_heads);
      const char* query =
          static_cast<const char*>(queries.data()) + static_cast<long>(h) * rows * width * item;
      run.attention({type,
                     {query, width},
                     head_of(0, kv),
                     head_of(1, kv),
                     nullptr,
                     attended.data() + h * width * item,
                     all,
                     scale,
                     rows,
                     seen,
                     width,
                     causal && rows > 1});
    }
    if (gated) run.gate({type, gate.data(), attended.data(), attended.data(), rows * all});
    o->multiply(run, type, attended.data(), y, rows);
    if (residual) run.add({type, x.data(), y, y, static_cast<long>(rows) * o->width()});
  }
};

// What an operation holds on to may be let go on MLX's thread, which must not need Python for it.
template <class T>
std::shared_ptr<const T> own(const T* from) {
  return from == nullptr ? nullptr : std::make_shared<const T>(*from);
}

}  // namespace pillion
