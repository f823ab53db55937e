// Whole parts of a decoder layer as one operation each.
//
// A small model's layer is a few dozen matrices of a few microseconds: as MLX operations most of a
// forward would be spent between them. Weights are held here, evaluated, and are no inputs of the
// graph. Rounding is where the parts' own kernels round, and like those every row is computed by
// itself.

#include "layers.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "parts.h"

namespace pillion {
namespace {

// A GatedDeltaNet layer (arXiv:2412.06464) as qwen3_5 has it.
struct DeltaLayer {
  SharedNorm norm, out_norm;
  Shared qkv, z, b, a, o;
  std::shared_ptr<const Arrays> constants;  // taps (taps, channels) in float32, A_log, dt_bias
  int key_heads, heads, key_width, value_width;

  int taps() const {
    return (*constants)[0].shape(0);
  }
  int channels() const {
    return (*constants)[0].shape(1);
  }

  // x + the layer's output, the convolution's window, the state, and what `replay` needs of the
  // rows: the window before with the projected rows behind it, and a and b.
  Arrays forward(const mx::array& x, const mx::array& window, const mx::array& state) const {
    const int rows = x.ndim() == 3 ? x.shape(1) : 0, before = taps() - 1;
    require(x.ndim() == 3 && x.shape(0) == 1 && x.shape(2) == qkv->depth() &&
                window.shape() == mx::Shape({1, before, channels()}) && window.dtype() == x.dtype(),
            "delta layer: x (1, T, hidden), window (1, taps - 1, channels)");
    require_state(state);
    return operation("PillionDeltaLayer",
                     {x.shape(),
                      window.shape(),
                      state.shape(),
                      {1, before + rows, channels()},
                      {1, 2, rows, heads}},
                     {x.dtype(), x.dtype(), mx::float32, x.dtype(), x.dtype()}, {x, window, state},
                     [self = *this, rows, type = type_of(x), &run = kernels()](const Views& in,
                                                                               const Outputs& out) {
                       Packed x_in(in[0]), old_window(in[1]), old_state(in[2]);
                       self.compute(run, type, rows, x_in.data(), old_window.data(),
                                    old_state.data(), out);
                     });
  }

  // Window and state after the first `keep` of the rows of a forward.
  std::pair<mx::array, mx::array> replay(const mx::array& inputs, const mx::array& gates,
                                         const mx::array& state, int keep) const {
    const int before = taps() - 1, rows = gates.shape(2);
    require(0 < keep && keep <= rows && inputs.shape(1) == before + rows,
            "delta layer: rows to keep");
    require_state(state);
    auto made =
        operation("PillionDeltaReplay", {{1, before, channels()}, state.shape()},
                  {inputs.dtype(), mx::float32}, {inputs, gates, state},
                  [self = *this, rows, keep, type = type_of(inputs), &run = kernels()](
                      const Views& in, const Outputs& out) {
                    Packed x(in[0]), ab(in[1]), old_state(in[2]);
                    Room unused(type, static_cast<long>(keep) * self.heads * self.value_width);
                    self.recur(run, type, keep, x.data(), ab.data(), rows, old_state.data(), out[1],
                               unused.data());
                    self.keep_window(type, keep, static_cast<const char*>(x.data()), out[0]);
                  });
    return {made[0], made[1]};
  }

 private:
  void require_state(const mx::array& state) const {
    require(state.shape() == mx::Shape({1, heads, value_width, key_width}) &&
                state.dtype() == mx::float32,
            "delta layer: state (1, heads, value_width, key_width) in float32");
  }

  void compute(const Kernels& run, Type type, int rows, const void* x, const void* window,
               const void* state, const Outputs& out) const {
    const long item = type == Type::f32 ? 4 : 2, hidden = qkv->depth(), values = z->width();
    const long window_bytes = item * (taps() - 1) * channels();
    Room normed(type, rows * hidden), gate(type, rows * values), y(type, rows * values);
    norm->apply(run, type, x, normed.data(), rows, static_cast<int>(hidden));
    std::memcpy(out[3], window, static_cast<std::size_t>(window_bytes));
    qkv->multiply(run, type, normed.data(), out[3] + window_bytes, rows);
    a->multiply(run, type, normed.data(), out[4], rows);
    b->multiply(run, type, normed.data(), out[4] + item * rows * heads, rows);
    z->multiply(run, type, normed.data(), gate.data(), rows);
    recur(run, type, rows, out[3], out[4], rows, state, out[2], y.data());
    out_norm->apply(run, type, y.data(), y.data(), rows * heads, value_width, gate.data());
    o->multiply(run, type, y.data(), normed.data(), rows);
    run.add({type, x, normed.data(), out[0], rows * hidden});
    keep_window(type, rows, out[3], out[1]);
  }

  void keep_window(Type type, int rows, const char* inputs, char* window) const {
    const long row = (type == Type::f32 ? 4L : 2L) * channels();
    std::memcpy(window, inputs + rows * row, static_cast<std::size_t>((taps() - 1) * row));
  }

  // The convolution and the recurrence over the first `rows` of `all_rows`.
  void recur(const Kernels& run, Type type, int rows, const void* inputs, const void* gates,
             int all_rows, const void* state, void* new_state, void* y) const {
    const long item = type == Type::f32 ? 4 : 2;
    const long keys = static_cast<long>(key_heads) * key_width,
               values = static_cast<long>(heads) * value_width;
    Room mixed(type, static_cast<long>(rows) * channels()), q(type, rows * keys),
        k(type, rows * keys), v(type, rows * values);
    run.convolve({type, inputs, (*constants)[0].data<float>(), mixed.data(), rows, taps(),
                  channels(), true});
    for (int t = 0; t < rows; t++) {
      const char* from = mixed.data() + item * t * channels();
      std::memcpy(q.data() + item * t * keys, from, static_cast<std::size_t>(item * keys));
      std::memcpy(k.data() + item * t * keys, from + item * keys,
                  static_cast<std::size_t>(item * keys));
      std::memcpy(v.data() + item * t * values, from + 2 * item * keys,
                  static_cast<std::size_t>(item * values));
    }
    // The L2 norm with its scales, as a norm by the mean.
    const float inverse = 1.0f / std::sqrt(static_cast<float>(key_width)),
                eps = 1e-6f * inverse * inverse;
    run.rms_norm({type, q.data(), nullptr, nullptr, q.data(), eps, inverse * inverse,
                  rows * key_heads, key_width});
    run.rms_norm(
        {type, k.data(), nullptr, nullptr, k.data(), eps, inverse, rows * key_heads, key_width});
    std::memcpy(new_state, state, sizeof(float) * static_cast<std::size_t>(values * key_width));
    const auto* strengths = static_cast<const char*>(gates) + item * all_rows * heads;
    run.gated_delta({type, type_of((*constants)[1]), type_of((*constants)[2]), q.data(), k.data(),
                     v.data(), gates, strengths, (*constants)[1].data<char>(),
                     (*constants)[2].data<char>(), y, static_cast<float*>(new_state), rows,
                     key_heads, heads, key_width, value_width});
  }
};

}  // namespace

void bind_layers(nb::module_& m) {
  nb::class_<Weights>(m, "Weights")
      .def(nb::init<const Arrays&, int, int>(), nb::arg("parts"), nb::arg("group") = 0,
           nb::arg("bits") = 0)
      .def("__call__", &Weights::operator())
      .def("rows", &Weights::rows, nb::arg("ids").none() = nb::none());
  nb::class_<Norm>(m, "Norm").def(nb::init<const mx::array&, float>());
  nb::class_<Mlp>(m, "Mlp")
      .def(
          "__init__",
          [](Mlp* self, const Norm* norm, const Weights* gate, const Weights* up,
             const Weights* down,
             bool residual) { new (self) Mlp{own(norm), own(gate), own(up), own(down), residual}; },
          nb::arg("norm").none(), nb::arg("gate"), nb::arg("up"), nb::arg("down"),
          nb::arg("residual"))
      .def("__call__", &Mlp::operator());
  nb::class_<AttentionLayer>(m, "AttentionLayer")
      .def(
          "__init__",
          [](AttentionLayer* self, const Norm* norm, const Norm* q_norm, const Norm* k_norm,
             const Weights* q, const Weights* k, const Weights* v, const Weights* o, int heads,
             int key_heads, int width, int rotated, float base, float rope_scale, float scale,
             bool gated, bool causal, bool residual) {
            new (self) AttentionLayer{own(norm),  own(q_norm), own(k_norm), own(q), own(k),  own(v),
                                      own(o),     heads,       key_heads,   width,  rotated, base,
                                      rope_scale, scale,       gated,       causal, residual};
          },
          nb::arg("norm").none(), nb::arg("q_norm").none(), nb::arg("k_norm").none(), nb::arg("q"),
          nb::arg("k"), nb::arg("v"), nb::arg("o"), nb::arg("heads"), nb::arg("key_heads"),
          nb::arg("width"), nb::arg("rotated"), nb::arg("base"), nb::arg("rope_scale"),
          nb::arg("scale"), nb::arg("gated"), nb::arg("causal"), nb::arg("residual"))
      .def("before", &AttentionLayer::before)
      .def("keys_and_values", &AttentionLayer::keys_and_values)
      .def("after", &AttentionLayer::after);
  nb::class_<DeltaLayer>(m, "DeltaLayer")
      .def("__init__",
           [](DeltaLayer* self, const Norm* norm, const Norm* out_norm, const Weights* qkv,
              const Weights* z, const Weights* b, const Weights* a, const Weights* o,
              const Arrays& constants, int key_heads, int heads, int key_width, int value_width) {
             auto kept = std::make_shared<Arrays>();
             for (const auto& constant : constants) kept->push_back(settled(constant));
             require(
                 kept->size() == 3 && (*kept)[0].dtype() == mx::float32 && (*kept)[0].ndim() == 2,
                 "delta layer: taps (taps, channels) in float32, A_log, dt_bias");
             new (self)
                 DeltaLayer{own(norm), own(out_norm), own(qkv),  own(z), own(b),    own(a),
                            own(o),    kept,          key_heads, heads,  key_width, value_width};
           })
      .def("forward", &DeltaLayer::forward)
      .def("replay", &DeltaLayer::replay);
}

}  // namespace pillion
