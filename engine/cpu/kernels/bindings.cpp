// MLX operations over the kernels: lazy, on MLX's own CPU stream, one thread.

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#ifdef __x86_64__
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "layers.h"
#include "mlx/version.h"
#include "operation.h"

using namespace pillion;

namespace {

#ifdef __x86_64__
// Whether the processor has AMX for bfloat16 and bytes, and Linux lets this process use it: the tiles are
// state to save, for which a process asks first (Documentation/arch/x86/xstate.rst).
bool tiles_allowed() {
  static const bool allowed = [] {
    unsigned a = 0, b = 0, c = 0, d = 0;
    constexpr unsigned NEEDED = 1u << 22 | 1u << 24 | 1u << 25;  // bfloat16, tiles, bytes
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
    if ((d & NEEDED) != NEEDED) return false;
    constexpr long REQUEST_PERMISSION = 0x1023, TILE_DATA = 18;
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
  }();
  return allowed;
}

bool avx_vnni() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & 1u << 4) != 0;
}

std::map<std::string, const Kernels*> sets() {
  static const Kernels on_avx2_vnni = avx2_vnni_kernels(), on_avx512_vnni = avx512_vnni_kernels(),
                       on_avx512_bf16 = avx512_bf16_kernels(), on_amx = amx_kernels();
  std::map<std::string, const Kernels*> found;
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") ||
      !__builtin_cpu_supports("f16c")) {
    return found;
  }
  found["avx2"] = &avx2_kernels;
  if (avx_vnni()) found["avx2_vnni"] = &on_avx2_vnni;
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512dq")) {
    return found;
  }
  found["avx512"] = &avx512_kernels;
  if (!__builtin_cpu_supports("avx512vnni")) return found;
  found["avx512_vnni"] = &on_avx512_vnni;
  if (!__builtin_cpu_supports("avx512bf16")) return found;
  found["avx512_bf16"] = &on_avx512_bf16;
  if (tiles_allowed()) found["amx"] = &on_amx;
  return found;
}
#else
std::map<std::string, const Kernels*> sets() {
  return {{"neon", &pillion::neon_kernels}};
}
#endif

const Kernels* chosen = nullptr;

void use(const std::string& name) {
  auto found = sets();
  auto at = found.find(name);
  if (at == found.end()) throw std::invalid_argument("this processor has no " + name);
  chosen = at->second;
}

std::string used() {
  for (const auto& [name, kernels] : sets()) {
    if (kernels == chosen) return name;
  }
  return "";
}

std::vector<std::string> instruction_sets() {
  std::vector<std::string> names;
  for (const auto& [name, kernels] : sets()) names.push_back(name);
  return names;
}

mx::array dense(const mx::array& x, const mx::array& w) {
  require(x.ndim() >= 1 && w.ndim() == 2 && x.shape(-1) == w.shape(1),
          "dense: x (..., K), w (N, K)");
  require(x.dtype() == w.dtype() && type_of(x) != Type::f16, "dense: float32 or bfloat16, both");
  const int rows = rows_of(x), depth = x.shape(-1), width = w.shape(0);
  return one(
      "PillionDense", with_last(x.shape(), width), x.dtype(), {x, w},
      [=, type = type_of(x), run = kernels().dense](const Views& in, const Outputs& out) {
        Packed rows_in(in[0]), weights(in[1]);
        run({type, {rows_in.data(), depth}, {weights.data(), depth}, out[0], rows, depth, width});
      });
}

std::pair<mx::array, mx::array> gated_delta(const mx::array& q, const mx::array& k,
                                            const mx::array& v, const mx::array& a,
                                            const mx::array& b, const mx::array& a_log,
                                            const mx::array& dt_bias, const mx::array& state) {
  require(q.ndim() == 4 && v.ndim() == 4 && a.ndim() == 3 && state.ndim() == 4,
          "gated_delta: q, k, v (B, T, H, D), a, b (B, T, H), state (B, H, Dv, Dk)");
  const int batch = q.shape(0), steps = q.shape(1), key_heads = q.shape(2), key_width = q.shape(3);
  const int heads = v.shape(2), value_width = v.shape(3);
  require(k.shape() == q.shape() && a.shape() == mx::Shape({batch, steps, heads}) &&
              b.shape() == a.shape() && key_heads > 0 && heads % key_heads == 0 &&
              v.shape(0) == batch && v.shape(1) == steps &&
              a_log.size() == static_cast<std::size_t>(heads) && dt_bias.size() == a_log.size() &&
              state.shape() == mx::Shape({batch, heads, value_width, key_width}),
          "gated_delta: shapes that do not belong together");
  require(k.dtype() == q.dtype() && v.dtype() == q.dtype() && a.dtype() == q.dtype() &&
              b.dtype() == q.dtype() && type_of(q) != Type::f16 && state.dtype() == mx::float32 &&
              type_of(a_log) != Type::f16 && type_of(dt_bias) != Type::f16,
          "gated_delta: q, k, v, a and b of one type, a float32 state");
  auto made = operation(
      "PillionGatedDelta", {v.shape(), state.shape()}, {q.dtype(), mx::float32},
      {q, k, v, a, b, a_log, dt_bias, state},
      [=, type = type_of(q), a_log_type = type_of(a_log), dt_bias_type = type_of(dt_bias),
       run = kernels().gated_delta](const Views& in, const Outputs& out) {
        Packed qs(in[0]), ks(in[1]), vs(in[2]), as(in[3]), bs(in[4]), logs(in[5]), shifts(in[6]),
            old(in[7]);
        const long y_size = static_cast<long>(steps) * heads * value_width;
        const long state_size = static_cast<long>(heads) * value_width * key_width;
        auto* into = reinterpret_cast<float*>(out[1]);
        std::memcpy(into, old.data(), sizeof(float) * static_cast<std::size_t>(batch * state_size));
        for (int i = 0; i < batch; i++) {
          run({type, a_log_type, dt_bias_type, part(qs, in[0], i), part(ks, in[1], i),
               part(vs, in[2], i), part(as, in[3], i), part(bs, in[4], i), logs.data(),
               shifts.data(), out[0] + i * y_size * static_cast<long>(in[0].item),
               into + i * state_size, steps, key_heads, heads, key_width, value_width});
        }
      });
  return {made[0], made[1]};
}

mx::array attention(const mx::array& q, const mx::array& k, const mx::array& v, float scale,
                    bool causal, const std::optional<mx::array>& mask) {
  require(q.ndim() == 4 && k.ndim() == 4 && v.ndim() == 4, "attention: q, k, v (B, H, T, D)");
  const int batch = q.shape(0), heads = q.shape(1), rows = q.shape(2), width = q.shape(3);
  const int key_heads = k.shape(1), keys = k.shape(2);
  require(k.shape() == v.shape() && k.shape(0) == batch && k.shape(3) == width && key_heads > 0 &&
              heads % key_heads == 0 && keys > 0 && (!causal || rows <= keys),
          "attention: shapes that do not belong together");
  require(q.dtype() == k.dtype() && q.dtype() == v.dtype() && type_of(q) != Type::f16,
          "attention: float32 or bfloat16, all of one");
  require(!mask || (mask->dtype() == mx::bool_ && mask->shape() == mx::Shape({rows, keys})),
          "attention: a boolean mask (T, keys)");
  Arrays inputs{q, k, v};
  if (mask) inputs.push_back(*mask);
  return one(
      "PillionAttention", q.shape(), q.dtype(), inputs,
      [=, type = type_of(q), run = kernels().attention](const Views& in, const Outputs& out) {
        // The caches' slices are read where they lie; anything stranger is copied first.
        std::vector<Packed> copies;
        auto as_rows = [&](const View& view) {
          if (view.rows_are_dense()) return view;
          View row_major = view;
          copies.emplace_back(view);
          row_major.data = static_cast<const char*>(copies.back().data());
          long stride = 1;
          for (int axis = 3; axis >= 0; stride *= view.shape[axis], axis--) {
            row_major.strides[axis] = stride;
          }
          return row_major;
        };
        copies.reserve(3);
        View qs = as_rows(in[0]), ks = as_rows(in[1]), vs = as_rows(in[2]);
        std::optional<Packed> masked;
        if (in.size() > 3) masked.emplace(in[3]);
        const auto* shown = masked ? static_cast<const bool*>(masked->data()) : nullptr;
        const long head_bytes = static_cast<long>(qs.item) * rows * width;
        for (int i = 0; i < batch * heads; i++) {
          const int b = i / heads, h = i % heads, kv = h / (heads / key_heads);
          run({type,
               {qs.at({b, h}), qs.stride(2)},
               {ks.at({b, kv}), ks.stride(2)},
               {vs.at({b, kv}), vs.stride(2)},
               shown,
               out[0] + i * head_bytes,
               width,
               scale,
               rows,
               keys,
               width,
               causal});
        }
      });
}

mx::array rms_norm(const mx::array& x, const std::optional<mx::array>& weight, float eps,
                   float factor, const std::optional<mx::array>& gate) {
  require(x.ndim() >= 1 && type_of(x) != Type::f16, "rms_norm: x in float32 or bfloat16");
  require(!weight || (weight->shape() == mx::Shape({x.shape(-1)}) && weight->dtype() == x.dtype()),
          "rms_norm: the weight has x's type and last axis");
  require(!gate || (gate->shape() == x.shape() && gate->dtype() == x.dtype()),
          "rms_norm: the gate has x's type and shape");
  Arrays inputs{x};
  if (weight) inputs.push_back(*weight);
  if (gate) inputs.push_back(*gate);
  return one(
      "PillionRmsNorm", x.shape(), x.dtype(), inputs,
      [=, rows = rows_of(x), width = x.shape(-1), type = type_of(x), weighted = weight.has_value(),
       gated = gate.has_value(), run = kernels().rms_norm](const Views& in, const Outputs& out) {
        std::vector<Packed> all(in.begin(), in.end());
        run({type, all[0].data(), weighted ? all[1].data() : nullptr,
             gated ? all.back().data() : nullptr, out[0], eps, factor, rows, width});
      });
}

mx::array rope(const mx::array& x, int dims, float base, float scale, int offset) {
  require(x.ndim() == 4 && dims > 0 && dims % 2 == 0 && dims <= x.shape(3),
          "rope: x (B, H, T, D), an even number of dimensions up to D");
  require(type_of(x) != Type::f16, "rope: x in float32 or bfloat16");
  return one("PillionRope", x.shape(), x.dtype(), {x},
             [=, type = type_of(x), run = kernels().rotate](const Views& in, const Outputs& out) {
               const View& view = in[0];
               const bool direct = view.rows_are_dense();
               Packed packed(view);
               const int steps = view.dim(2), width = view.dim(3), half = dims / 2;
               const int heads = view.dim(0) * view.dim(1);
               const long row_bytes = static_cast<long>(view.item) * width;
               std::vector<float> cosines(half), sines(half);
               for (int t = 0; t < steps; t++) {
                 rope_angles(half, base, scale, offset + t, cosines.data(), sines.data());
                 for (int h = 0; h < heads; h++) {
                   const long at = (static_cast<long>(h) * steps + t) * row_bytes;
                   const char* row = direct ? view.at({h / view.dim(1), h % view.dim(1), t})
                                            : static_cast<const char*>(packed.data()) + at;
                   run({type, row, out[0] + at, cosines.data(), sines.data(), dims, width});
                 }
               }
             });
}

mx::array convolve(const mx::array& x, const mx::array& w) {
  require(x.ndim() == 3 && w.ndim() == 2 && w.shape(1) == x.shape(2) && x.shape(1) >= w.shape(0),
          "convolve: x (B, T + taps - 1, C), w (taps, C)");
  require(w.dtype() == mx::float32 && type_of(x) != Type::f16,
          "convolve: w in float32, x in float32 or bfloat16");
  const int taps = w.shape(0), channels = w.shape(1), batch = x.shape(0);
  const int steps = x.shape(1) - taps + 1;
  return one("PillionConvolve", {batch, steps, channels}, x.dtype(), {x, w},
             [=, type = type_of(x), run = kernels().convolve](const Views& in, const Outputs& out) {
               Packed rows(in[0]), weights(in[1]);
               const long bytes = static_cast<long>(in[0].item) * steps * channels;
               for (int b = 0; b < batch; b++) {
                 run({type, part(rows, in[0], b), static_cast<const float*>(weights.data()),
                      out[0] + b * bytes, steps, taps, channels, false});
               }
             });
}

mx::array own_convolve(const mx::array& x, const mx::array& base, const mx::array& own, int side) {
  require(x.ndim() == 3 && x.shape(0) == 1 && base.ndim() == 3 && base.shape(2) == x.shape(2) &&
              own.ndim() == 5 && own.shape(1) == x.shape(1) && own.shape(2) == base.shape(0) &&
              own.shape(3) == base.shape(1) && x.shape(2) % own.shape(4) == 0 && 0 <= side &&
              side < base.shape(0),
          "own_convolve: x (1, T, C), base (sides, taps, C), own (1, T, sides, taps, groups)");
  require(base.dtype() == x.dtype() && own.dtype() == x.dtype() && type_of(x) != Type::f16,
          "own_convolve: float32 or bfloat16, all of one");
  const int taps = base.shape(1), channels = x.shape(2), groups = own.shape(4);
  const int sides = base.shape(0);
  return one(
      "PillionOwnConvolve", x.shape(), x.dtype(), {x, base, own},
      [=, steps = x.shape(1), type = type_of(x), run = kernels().own_convolve](const Views& in,
                                                                               const Outputs& out) {
        Packed rows(in[0]), bases(in[1]), owns(in[2]);
        const long item = static_cast<long>(in[0].item), of_side = side * static_cast<long>(taps);
        run({type, rows.data(), static_cast<const char*>(bases.data()) + item * of_side * channels,
             static_cast<const char*>(owns.data()) + item * of_side * groups,
             static_cast<long>(sides) * taps * groups, out[0], steps, taps, channels,
             channels / groups});
      });
}

std::pair<mx::array, mx::array> best(const mx::array& x, int count) {
  require(x.ndim() == 2 && type_of(x) != Type::f16 && count > 0 && count <= x.shape(1),
          "best: x (M, N) in float32 or bfloat16, at most N of each row");
  const mx::Shape shape{x.shape(0), count};
  auto made = operation("PillionBest", {shape, shape}, {mx::float32, mx::int32}, {x},
                        [=, rows = x.shape(0), width = x.shape(1), type = type_of(x),
                         run = kernels().best](const Views& in, const Outputs& out) {
                          Packed packed(in[0]);
                          for (long m = 0; m < rows; m++) {
                            run({type, part(packed, in[0], static_cast<int>(m)), width, count,
                                 reinterpret_cast<float*>(out[0]) + m * count,
                                 reinterpret_cast<int*>(out[1]) + m * count});
                          }
                        });
  return {made[0], made[1]};
}

mx::array choose(const mx::array& logits, const std::vector<std::uint64_t>& keys,
                 float temperature, int top_k, float top_p, float min_score) {
  require(logits.ndim() == 2 && static_cast<std::size_t>(logits.shape(0)) == keys.size() &&
              logits.shape(1) > 0,
          "choose: logits (M, N), M keys");
  return one("PillionChoose", {logits.shape(0)}, mx::int32, {logits},
             [=, width = logits.shape(1), type = type_of(logits), run = kernels().choose](
                 const Views& in, const Outputs& out) {
               Packed packed(in[0]);
               auto* tokens = reinterpret_cast<int*>(out[0]);
               for (std::size_t m = 0; m < keys.size(); m++) {
                 tokens[m] = run({type, part(packed, in[0], static_cast<int>(m)), width,
                                  temperature, top_k, top_p, min_score,
                                  static_cast<std::uint32_t>(keys[m]),
                                  static_cast<std::uint32_t>(keys[m] >> 32)});
               }
             });
}

mx::array swiglu(const mx::array& gate, const mx::array& x) {
  require(gate.shape() == x.shape() && gate.dtype() == x.dtype() && type_of(x) != Type::f16,
          "swiglu: gate and x of one shape and type");
  return one("PillionSwiglu", x.shape(), x.dtype(), {gate, x},
             [count = static_cast<long>(x.size()), type = type_of(x), run = kernels().swiglu](
                 const Views& in, const Outputs& out) {
               Packed gates(in[0]), rows(in[1]);
               run({type, gates.data(), rows.data(), out[0], count});
             });
}

}  // namespace

const Kernels& pillion::kernels() {
  if (chosen == nullptr) throw std::runtime_error("no instruction set was chosen");
  return *chosen;
}

NB_MODULE(_kernels, m) {
  m.attr("mlx_version") = mx::version();
  m.attr("sources") = SOURCES;
  m.def("instruction_sets", &instruction_sets);
  m.def("use", &use);
  m.def("used", &used);
  m.def("dense", &dense);
  m.def("gated_delta", &gated_delta);
  m.def("attention", &attention, nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("scale"),
        nb::arg("causal"), nb::arg("mask").none() = nb::none());
  m.def("rms_norm", &rms_norm, nb::arg("x"), nb::arg("weight").none(), nb::arg("eps"),
        nb::arg("factor") = 1.0f, nb::arg("gate").none() = nb::none());
  m.def("rope", &rope);
  m.def("convolve", &convolve);
  m.def("own_convolve", &own_convolve);
  m.def("best", &best);
  m.def("choose", &choose, nb::arg("logits"), nb::arg("keys"), nb::arg("temperature") = 0.0f,
        nb::arg("top_k") = 0, nb::arg("top_p") = 1.0f, nb::arg("min_score") = -INFINITY);
  m.def("swiglu", &swiglu);
  bind_layers(m);
  bind_drafter(m);
}
