// Every kernel on buffers of exactly its size, for the sanitizers: a read or write past a row's end
// or a shift too far ends the program. Also checks that rows keep their bits. Prints what it ran.

#ifdef __x86_64__
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "packing.h"

using namespace pillion;

namespace {

#ifdef __x86_64__
using Half = _Float16;
#else
using Half = __fp16;
#endif

std::mt19937 numbers(7);

std::vector<float> floats(long count) {
  std::normal_distribution<float> normal;
  std::vector<float> made(static_cast<std::size_t>(count));
  for (auto& x : made) x = normal(numbers);
  return made;
}

// The same numbers in another type, in a buffer of exactly their size.
std::vector<char> as(Type type, const std::vector<float>& from) {
  const std::size_t item = type == Type::f32 ? 4 : 2;
  std::vector<char> made(from.size() * item);
  for (std::size_t i = 0; i < from.size(); i++) {
    if (type == Type::f32) {
      std::memcpy(made.data() + i * 4, &from[i], 4);
    } else if (type == Type::bf16) {
      std::memcpy(made.data() + i * 2, reinterpret_cast<const char*>(&from[i]) + 2, 2);
    } else {
      const Half half = static_cast<Half>(from[i]);
      std::memcpy(made.data() + i * 2, &half, 2);
    }
  }
  return made;
}

void same(const std::vector<char>& some, const std::vector<char>& all, const char* what) {
  if (std::memcmp(some.data(), all.data(), some.size()) == 0) return;
  std::printf("%s: rows have other bits\n", what);
  std::exit(1);
}

float widened(Type type, const std::vector<char>& from, long i) {
  float value = 0;
  if (type == Type::f32) {
    std::memcpy(&value, from.data() + i * 4, 4);
  } else {
    std::memcpy(reinterpret_cast<char*>(&value) + 2, from.data() + i * 2, 2);
  }
  return value;
}

void check_dense(const Kernels& kernels, Type type, int depth, int width) {
  constexpr int ROWS = 21;
  const std::size_t item = type == Type::f32 ? 4 : 2;
  auto x = as(type, floats(static_cast<long>(ROWS) * depth));
  auto w = as(type, floats(static_cast<long>(width) * depth));
  std::vector<char> all(ROWS * static_cast<std::size_t>(width) * item);
  kernels.dense({type, {x.data(), depth}, {w.data(), depth}, all.data(), ROWS, depth, width});
  for (long m = 0; m < ROWS; m++) {
    for (long n = 0; n < width; n++) {
      double sum = 0, size = 1e-6;
      for (long k = 0; k < depth; k++) {
        const double term = widened(type, x, m * depth + k) * double(widened(type, w, n * depth + k));
        sum += term;
        size += std::abs(term);
      }
      const double bound = size * (type == Type::f32 ? 1e-6 : 8e-3);
      if (!(std::abs(widened(type, all, m * width + n) - sum) < bound)) {
        std::puts("dense: a value is off");
        std::exit(1);
      }
    }
  }
  for (int rows = 1; rows < ROWS; rows++) {
    std::vector<char> few(x.begin(), x.begin() + static_cast<long>(item) * rows * depth);
    std::vector<char> some(static_cast<std::size_t>(rows) * static_cast<std::size_t>(width) * item);
    kernels.dense(
        {type, {few.data(), depth}, {w.data(), depth}, some.data(), rows, depth, width});
    same(some, all, "dense");
  }
}

float widened_scale(Type type, const std::vector<char>& from, long i) {
  if (type != Type::f16) return widened(type, from, i);
  Half half;
  std::memcpy(&half, from.data() + i * 2, 2);
  return static_cast<float>(half);
}

// One result in plain C++, in the order that fixed_point.h states: the bits that every instruction
// set must give.
float plain_result(const float* x, const std::uint32_t* w, const float* scales, const float* biases,
                   int bits, int group, int groups) {
  float y = 0;
  for (int g = 0; g < groups; g++) {
    float largest = 0x1p-100f;
    for (int k = 0; k < group; k++) largest = std::fmax(largest, std::fabs(x[g * group + k]));
    const float scale = largest / 32639.0f, inverse = 32639.0f / largest;
    std::int32_t products = 0, sum = 0;
    for (int k = g * group; k < (g + 1) * group; k++) {
      const int q = static_cast<int>(std::nearbyint(x[k] * inverse));
      const int per_word = 32 / bits;
      const int weight = static_cast<int>(w[k / per_word] >> (k % per_word * bits)) & ((1 << bits) - 1);
      products += q * weight;
      sum += q;
    }
    y = std::fma(static_cast<float>(products), scales[g] * scale, y);
    y = std::fma(biases[g], scale * static_cast<float>(sum), y);
  }
  return y;
}

struct Aligned {
  char* data;
  explicit Aligned(long bytes)
      : data(static_cast<char*>(std::aligned_alloc(64, static_cast<std::size_t>((bytes + 63) / 64 * 64)))) {}
  ~Aligned() {
    std::free(data);
  }
};

void check_quantized(const Kernels& kernels, Type type, Type scale_type, int bits, int group,
                     int groups, int width) {
  constexpr int ROWS = 19;
  const int depth = group * groups;
  const std::size_t item = type == Type::f32 ? 4 : 2;
  auto x = as(type, floats(static_cast<long>(ROWS) * depth));
  std::vector<std::uint32_t> w(static_cast<std::size_t>(width) * depth * bits / 32);
  for (auto& word : w) word = static_cast<std::uint32_t>(numbers());
  auto scales = as(scale_type, floats(static_cast<long>(width) * groups));
  auto biases = as(scale_type, floats(static_cast<long>(width) * groups));
  const Packing packing{scale_type, bits, group, depth, width};
  const Aligned packed(packing.bytes());
  pack(packing, w.data(), scales.data(), biases.data(), packed.data);
  auto run = [&](const std::vector<char>& from, int rows) {
    std::vector<char> y(static_cast<std::size_t>(rows) * static_cast<std::size_t>(width) * item);
    kernels.quantized({type, packing, {from.data(), depth}, packed.data, y.data(), rows});
    return y;
  };
  auto all = run(x, ROWS);
  for (int rows = 1; rows < ROWS; rows++) {
    std::vector<char> few(x.begin(), x.begin() + static_cast<long>(item) * rows * depth);
    same(run(few, rows), all, "quantized");
  }
  if (type != Type::f32) return;
  std::vector<float> row(static_cast<std::size_t>(depth)), s(static_cast<std::size_t>(groups)), b(s);
  for (long n = 0; n < width; n++) {
    for (int g = 0; g < groups; g++) {
      s[static_cast<std::size_t>(g)] = widened_scale(scale_type, scales, n * groups + g);
      b[static_cast<std::size_t>(g)] = widened_scale(scale_type, biases, n * groups + g);
    }
    for (long m = 0; m < ROWS; m++) {
      for (int k = 0; k < depth; k++) row[static_cast<std::size_t>(k)] = widened(type, x, m * depth + k);
      const float expected = plain_result(row.data(), w.data() + n * depth * bits / 32, s.data(),
                                          b.data(), bits, group, groups);
      const float got = widened(type, all, m * width + n);
      if (std::memcmp(&expected, &got, 4) != 0) {
        std::puts("quantized: other bits than plain C++");
        std::exit(1);
      }
    }
  }
}

void check_gated_delta(const Kernels& kernels, Type type, int key_width, int value_width) {
  constexpr int STEPS = 5, KEY_HEADS = 2, HEADS = 4;
  const std::size_t item = type == Type::f32 ? 4 : 2;
  auto q = as(type, floats(STEPS * KEY_HEADS * key_width));
  auto k = as(type, floats(STEPS * KEY_HEADS * key_width));
  auto v = as(type, floats(STEPS * HEADS * value_width));
  auto a = as(type, floats(STEPS * HEADS)), b = as(type, floats(STEPS * HEADS));
  auto a_log = floats(HEADS);
  auto dt_bias = as(Type::bf16, floats(HEADS));
  auto state = floats(HEADS * value_width * key_width), stepped = state;
  std::vector<char> y(STEPS * HEADS * static_cast<std::size_t>(value_width) * item);
  kernels.gated_delta({type, Type::f32, Type::bf16, q.data(), k.data(), v.data(), a.data(),
                       b.data(), a_log.data(), dt_bias.data(), y.data(), state.data(), STEPS,
                       KEY_HEADS, HEADS, key_width, value_width});
  for (int t = 0; t < STEPS; t++) {
    const std::size_t key_at = t * KEY_HEADS * static_cast<std::size_t>(key_width) * item;
    const std::size_t at = t * HEADS * item, y_size = y.size() / STEPS;
    std::vector<char> one(y_size);
    kernels.gated_delta({type, Type::f32, Type::bf16, q.data() + key_at, k.data() + key_at,
                         v.data() + t * y_size, a.data() + at, b.data() + at, a_log.data(),
                         dt_bias.data(), one.data(), stepped.data(), 1, KEY_HEADS, HEADS,
                         key_width, value_width});
    same(one, std::vector<char>(y.begin() + static_cast<long>(t * y_size), y.end()), "gated_delta");
  }
}

void check_attention(const Kernels& kernels, Type type, int keys, int width) {
  const int rows = keys < 11 ? keys : 11;
  const std::size_t item = type == Type::f32 ? 4 : 2, row = static_cast<std::size_t>(width) * item;
  auto q = as(type, floats(static_cast<long>(rows) * width));
  auto k = as(type, floats(static_cast<long>(keys) * width));
  auto v = as(type, floats(static_cast<long>(keys) * width));
  std::vector<char> y(static_cast<std::size_t>(rows) * row);
  kernels.attention({type, {q.data(), width}, {k.data(), width}, {v.data(), width}, nullptr,
                     y.data(), width, 0.1f, rows, keys, width, true});
  for (int i = 0; i < rows; i++) {
    const std::size_t at = static_cast<std::size_t>(i) * row;
    std::vector<char> one(row);
    kernels.attention({type, {q.data() + at, width}, {k.data(), width}, {v.data(), width},
                       nullptr, one.data(), width, 0.1f, 1, keys - rows + i + 1, width, false});
    same(one, std::vector<char>(y.begin() + static_cast<long>(at), y.end()), "attention");
  }
}

void check_elementwise(const Kernels& kernels, Type type, int width) {
  constexpr int ROWS = 3, TAPS = 4;
  const std::size_t item = type == Type::f32 ? 4 : 2;
  auto x = as(type, floats((ROWS + TAPS - 1) * width)), gate = as(type, floats(ROWS * width));
  auto weight = as(type, floats(width));
  auto taps = floats(TAPS * width), angles = floats(width / 2);
  std::vector<char> y(ROWS * static_cast<std::size_t>(width) * item);
  kernels.rms_norm({type, gate.data(), weight.data(), gate.data(), y.data(), 1e-6f, 1.0f, ROWS,
                    width});
  kernels.rms_norm({type, gate.data(), nullptr, nullptr, y.data(), 1e-6f, 0.5f, ROWS, width});
  kernels.convolve({type, x.data(), taps.data(), y.data(), ROWS, TAPS, width, true});
  kernels.add({type, gate.data(), gate.data(), y.data(), ROWS * width});
  kernels.gate({type, gate.data(), gate.data(), y.data(), ROWS * width});
  kernels.swiglu({type, gate.data(), gate.data(), y.data(), ROWS * width});
  kernels.own_convolve({type, gate.data(), x.data(), weight.data(), 0, y.data(), ROWS, 2, width, width});
  kernels.rotate({type, weight.data(), y.data(), angles.data(), angles.data(), width / 2 * 2, width});
}

// Ends where a filter cuts, and ids that are none, would read or write past the row.
void check_choice(const Kernels& kernels, Type type, int width) {
  auto x = as(type, floats(width));
  for (float temperature : {0.0f, 0.8f}) {
    for (int top_k : {0, 1, 5, width}) {
      for (float top_p : {1.0f, 0.7f}) {
        const int token = kernels.choose({type, x.data(), width, temperature, top_k, top_p, -50.0f, 1, 2});
        if (token < 0 || token >= width) {
          std::printf("choose: %d of %d\n", token, width);
          std::exit(1);
        }
      }
    }
  }
  if (type == Type::f16) return;
  const int count = width < 9 ? width : 9;
  std::vector<float> scores(static_cast<std::size_t>(count));
  std::vector<int> ids(static_cast<std::size_t>(count));
  kernels.best({type, x.data(), width, count, scores.data(), ids.data()});
}

void check(const Kernels& kernels) {
  for (Type type : {Type::f32, Type::bf16, Type::f16}) {
    for (int width : {1, 7, 16, 33, 1000}) check_choice(kernels, type, width);
  }
  for (Type type : {Type::f32, Type::bf16}) {
    for (int depth : {1, 7, 8, 16, 31, 33, 64, 100}) {
      for (int width : {1, 5, 8, 16, 37}) check_dense(kernels, type, depth, width);
    }
    for (Type scale_type : {Type::f32, Type::bf16, Type::f16}) {
      for (int bits : {4, 8}) {
        for (int group : {32, 64, 128}) {
          for (int groups : {1, 2, 3, 5, 18}) {
            check_quantized(kernels, type, scale_type, bits, group, groups, 3 + groups * 4);
          }
        }
      }
    }
    for (int width : {1, 8, 12, 16, 20, 64}) {
      check_gated_delta(kernels, type, width, width + 4);
      check_elementwise(kernels, type, width + 1);
      for (int keys : {1, 7, 16, 50}) check_attention(kernels, type, keys, width);
    }
  }
}

}  // namespace

int main() {
#ifdef __x86_64__
  check(avx2_kernels);
  std::puts("avx2");
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & 1u << 4) != 0) {
    check(avx2_vnni_kernels());
    std::puts("avx2_vnni");
  }
  if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq")) {
    check(avx512_kernels);
    std::puts("avx512");
    if (__builtin_cpu_supports("avx512vnni")) {
      check(avx512_vnni_kernels());
      std::puts("avx512_vnni");
    }
  }
  if (__builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni")) {
    check(avx512_bf16_kernels());
    std::puts("avx512_bf16");
  }
  // Linux grants the use of AMX tiles only where there are any.
  if (syscall(SYS_arch_prctl, 0x1023L, 18L) == 0) {
    check(amx_kernels());
    std::puts("amx");
  }
#else
  check(neon_kernels);
  std::puts("neon");
#endif
}
