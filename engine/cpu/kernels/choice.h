// The token that a row of logits chooses (engine/decoding/sampling.py), and the best few of a row.
//
// A row is read a few times and nothing is sorted but what lies where a filter cuts. Of the noise
// only its upper bound is computed for every token: -log(-log1p(-u)) <= -log(u), and a float's bits
// are its logarithm, nearly. The few tokens that this does not rule out get what MLX computes.

#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

namespace {

inline std::uint32_t scrambled(std::uint32_t bits) {
  bits = (bits ^ (bits >> 16)) * 0x21F0AAADu;
  bits = (bits ^ (bits >> 15)) * 0x735A2D97u;
  return bits ^ (bits >> 15);
}

inline Ints scrambled(Ints bits) {
  bits = times(unlike(bits, shifted_right<16>(bits)), all_ints(0x21F0AAAD));
  bits = times(unlike(bits, shifted_right<15>(bits)), all_ints(0x735A2D97));
  return unlike(bits, shifted_right<15>(bits));
}

constexpr std::uint32_t ID_STEP = 0x9E3779B1u;

// The noise of one token, with the roundings of `gumbel` in sampling.py.
inline float noise_of(std::uint32_t low, std::uint32_t high, int id) {
  const std::uint32_t bits =
      scrambled(scrambled(static_cast<std::uint32_t>(id) * ID_STEP + low) ^ high);
  const float uniform =
      std::min((static_cast<float>(bits) + 0.5f) * 0x1p-32f, 1.0f - 0x1p-24f);
  return -std::log(-std::log1p(-uniform));
}

// No noise of a lane is above this.
inline Vec most_noise(std::uint32_t low, std::uint32_t high, Ints ids) {
  Ints bits = plus(times(ids, all_ints(static_cast<int>(ID_STEP))), all_ints(static_cast<int>(low)));
  bits = scrambled(unlike(scrambled(bits), all_ints(static_cast<int>(high))));
  // u * 2^24 rounded down; its float's bits / 2^23 - 127 is at most its logarithm by 2.
  const Vec rounded_down = to_floats(shifted_right<8>(bits));
  const Vec logarithm = to_floats(floats_as_bits(rounded_down));
  constexpr float LN_2 = 0.6931472f, BELOW = 24 + 127;
  return fma(logarithm, all(-LN_2 * 0x1p-23f), all(LN_2 * BELOW + 1e-3f));
}

template <class T>
class Chooser {
 public:
  explicit Chooser(const pillion::Choice& a) : a_(a), x_(static_cast<const T*>(a.x)) {}

  int chosen() {
    Vec highest = all(-__builtin_inff());
    Ints magnitude = all_ints(0);
    each([&](int, Vec x) {
      highest = maximum(highest, x);
      magnitude = larger(magnitude, magnitude_bits(x));
    });
    float lanes[W];
    store(lanes, highest);
    best_ = *std::max_element(lanes, lanes + W);
    // Lanes behind the end hold -inf.
    if (largest_lane(magnitude) > INFINITE_BITS || std::isinf(best_)) return -1;
    if (a_.temperature == 0.0f) return first_best();
    if (a_.top_k > 0 || a_.top_p < 1.0f) cut();
    return noisiest();
  }

 private:
  // Steps of the histogram: a sixteenth each, and all that is 64 and more below the best.
  static constexpr int STEPS = 1024;
  static constexpr float IN_ONE = 16.0f;

  template <class Body>
  void each(Body body) const {
    int i = 0;
    for (; i + W <= a_.width; i += W) body(i, load(x_ + i));
    if (i == a_.width) return;
    float lanes[W];
    store(lanes, load(x_ + i, a_.width - i));
    std::fill(lanes + (a_.width - i), lanes + W, -__builtin_inff());
    body(i, load(lanes));
  }

  template <class Body>
  void each_score(Body body) const {
    const Vec best = all(best_), temperature = all(a_.temperature);
    each([&](int i, Vec x) { body(i, (x - best) / temperature); });
  }

  static void each_lane(unsigned lanes, int from, const auto& body) {
    for (; lanes != 0; lanes &= lanes - 1) body(from, __builtin_ctz(lanes));
  }

  int first_best() const {
    int found = a_.width;
    const Vec best = all(best_);
    each([&](int i, Vec x) {
      const unsigned lanes = found == a_.width ? at_least(x, best) : 0;
      if (lanes != 0) found = i + __builtin_ctz(lanes);
    });
    return found;
  }

  struct Scored {
    float score;
    int id;
    bool operator<(const Scored& other) const {
      return score != other.score ? score > other.score : id < other.id;
    }
  };

  static int step_of(float score) {
    return static_cast<int>(std::min(-score * IN_ONE, static_cast<float>(STEPS - 1)));
  }

  // Those of one step, in order.
  std::vector<Scored> of_step(int step) const {
    std::vector<Scored> found;
    const Vec least = all(step == STEPS - 1 ? -__builtin_inff()
                                            : -static_cast<float>(step + 1) / IN_ONE);
    each_score([&](int i, Vec scores) {
      const unsigned lanes = at_least(scores, least);
      if (lanes == 0) return;
      float all_scores[W];
      store(all_scores, scores);
      each_lane(lanes, i, [&](int from, int lane) {
        if (from + lane < a_.width && step_of(all_scores[lane]) == step) {
          found.push_back({all_scores[lane], from + lane});
        }
      });
    });
    std::sort(found.begin(), found.end());
    return found;
  }

  static float mass_of(float score) {
    float lanes[W];
    store(lanes, exponential(all(score)));
    return lanes[0];
  }

  // What comes behind `last_` is out: first by rank, then by the mass in front of it.
  void cut() {
    std::vector<int> counts(STEPS, 0);
    std::vector<double> masses(STEPS, 0.0);
    each_score([&](int i, Vec scores) {
      float some[W], mass[W];
      store(some, scores);
      store(mass, exponential(scores));
      for (int lane = 0; lane < W && i + lane < a_.width; lane++) {
        const int step = step_of(some[lane]);
        counts[step]++;
        masses[step] += mass[lane];
      }
    });
    int end = STEPS;
    std::vector<Scored> partial;
    if (a_.top_k > 0 && a_.top_k < a_.width) {
      int before = 0, step = 0;
      for (; before + counts[step] < a_.top_k; step++) before += counts[step];
      partial = of_step(step);
      partial.resize(static_cast<std::size_t>(a_.top_k - before));
      last_ = partial.back();
      masses[step] = 0.0;
      for (const Scored& one : partial) masses[step] += mass_of(one.score);
      end = step + 1;
    }
    if (a_.top_p >= 1.0f) return;
    double total = 0.0, before = 0.0;
    for (int step = 0; step < end; step++) total += masses[step];
    const double limit = static_cast<double>(a_.top_p) * total;
    for (int step = 0; step < end; step++) {
      if (before + masses[step] < limit) {
        before += masses[step];
        continue;
      }
      const bool cut_before = !partial.empty() && step == end - 1;
      for (const Scored& one : cut_before ? partial : of_step(step)) {
        if (before >= limit) return;
        last_ = one;
        before += mass_of(one.score);
      }
    }
  }

  int noisiest() const {
    float best = -__builtin_inff();
    int token = -1, lanes_of_ids[W];
    for (int lane = 0; lane < W; lane++) lanes_of_ids[lane] = lane;
    const Ints first_ids = load_words(reinterpret_cast<const std::uint32_t*>(lanes_of_ids));
    const float least = std::max(a_.min_score, last_.score);
    each_score([&](int i, Vec scores) {
      unsigned lanes = at_least(scores, all(least));
      if (lanes == 0) return;
      const Vec most = scores + most_noise(a_.low, a_.high, plus(first_ids, all_ints(i)));
      lanes &= at_least(most, all(best));
      if (lanes == 0) return;
      float some[W];
      store(some, scores);
      each_lane(lanes, i, [&](int from, int lane) {
        const int id = from + lane;
        if (id >= a_.width || last_ < Scored{some[lane], id}) return;
        const float score = some[lane] + noise_of(a_.low, a_.high, id);
        if (score > best) {
          best = score;
          token = id;
        }
      });
    });
    return token;
  }

  const pillion::Choice& a_;
  const T* x_;
  float best_ = 0.0f;
  Scored last_{-__builtin_inff(), 0x7fffffff};
};

int choose(const pillion::Choice& a) {
  switch (a.type) {
    case Type::f32:
      return Chooser<float>(a).chosen();
    case Type::bf16:
      return Chooser<bf16>(a).chosen();
    case Type::f16:
      return Chooser<f16>(a).chosen();
  }
  return -1;
}

template <class T>
void best_of(const pillion::Best& a) {
  const T* x = static_cast<const T*>(a.x);
  const int last = a.count - 1;
  std::fill(a.scores, a.scores + a.count, -__builtin_inff());
  std::fill(a.ids, a.ids + a.count, 0);
  for_row<T>(a.width, [&](int i, int n) {
    const Vec scores = some(x + i, n);
    unsigned lanes = at_least(scores, all(a.scores[last]));
    if (n < W) lanes &= (1u << n) - 1;
    if (lanes == 0) return;
    float each[W];
    store(each, scores);
    for (; lanes != 0; lanes &= lanes - 1) {
      const int lane = __builtin_ctz(lanes);
      if (!(each[lane] > a.scores[last])) continue;
      int at = last;
      for (; at > 0 && each[lane] > a.scores[at - 1]; at--) {
        a.scores[at] = a.scores[at - 1];
        a.ids[at] = a.ids[at - 1];
      }
      a.scores[at] = each[lane];
      a.ids[at] = i + lane;
    }
  });
}

void best(const pillion::Best& a) {
  a.type == Type::f32 ? best_of<float>(a) : best_of<bf16>(a);
}

}  // namespace
