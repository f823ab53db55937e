// A DFlash drafter's round as one call: context rows in, a block through the stack, tokens out.
//
// A small drafter is some fifty matrices of a few microseconds: as a graph of MLX operations most of
// a draft is spent between them. Nothing is lazy here: the call runs on the caller's thread and the
// target's next forward is built from its tokens. What it says is verified, so rows may depend on
// each other. Committed rows are written into the buffers of `PositionedRows` in place, behind all
// that anybody has seen of them.

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cmath>

#include "layers.h"
#include "parts.h"

namespace pillion {
namespace {

struct BlockConvolution {
  Shared own;
  mx::array base;  // (2, taps, hidden)
};

struct DraftLayer {
  SharedNorm norm, mlp_norm;
  std::shared_ptr<const AttentionLayer> attention;
  std::shared_ptr<const Mlp> mlp;
  std::shared_ptr<const BlockConvolution> around_attention, around_mlp;
};

struct Selector {
  mx::array predecessors, successors;  // (vocabulary, rank)
  Shared projection;
  int count;
};

// Of the request, and the keys of the noise of each drafted position. For `filtered` of selector.py.
struct Sampler {
  float temperature;
  int top_k;
  float top_p, min_p, min_score;
  std::vector<std::uint64_t> keys;
};

float value_at(Type type, const char* from, long i) {
  std::uint32_t bits = 0;
  if (type == Type::f32) {
    std::memcpy(&bits, from + 4 * i, 4);
  } else {
    std::uint16_t high;
    std::memcpy(&high, from + 2 * i, 2);
    bits = static_cast<std::uint32_t>(high) << 16;
  }
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

float value_at(const mx::array& a, long i) {
  return value_at(type_of(a), a.data<char>(), i);
}

struct DraftStack {
  Shared fc;
  SharedNorm hidden_norm, norm;
  std::vector<DraftLayer> layers;
  Shared head;
  std::shared_ptr<const Selector> selector;  // null for the first version
  float multiplier, softcap;

  // observed: tapped rows (n, taps * hidden), of which the first counts[i] are new. rows: buffers, of the context, (1,
  // capacity, hidden), and then of each layer's keys and values, (1, heads, capacity, width).
  // at: where in each the first new row goes. first: the oldest row that a layer attends to. end:
  // position behind the new rows. table: embeddings, of which `ids` are the block's, the anchor's
  // first. Returns a token for each but the anchor, or fewer.
  std::vector<int> propose(const Arrays& observed, const std::vector<int>& counts,
                           const Arrays& rows, const std::vector<int>& at,
                           const std::vector<int>& first, int end, const mx::array& table,
                           const std::vector<int>& ids, int anchor, const Sampler& sampler) const {
    const Type type = type_of(table);
    const int hidden = fc->width(), block = static_cast<int>(ids.size());
    require(rows.size() == 1 + 2 * layers.size() && at.size() == 1 + layers.size() &&
                first.size() == layers.size() && table.ndim() == 2 && table.shape(1) == hidden &&
                table.flags().row_contiguous && block > 1 &&
                sampler.keys.size() + 1 == static_cast<std::size_t>(block),
            "draft: a buffer of rows, and of keys and values of each layer");
    int added = 0;
    require(counts.size() == observed.size(), "draft: a count for each array of observed rows");
    for (std::size_t i = 0; i < observed.size(); i++) {
      const auto& part = observed[i];
      require(part.ndim() == 2 && part.shape(1) == fc->depth() && part.dtype() == table.dtype() &&
                  0 <= counts[i] && counts[i] <= part.shape(0),
              "draft: observed rows (n, taps * hidden)");
      added += counts[i];
    }
    for (std::size_t i = 0; i < rows.size(); i++) {
      const int needed = at[(i + 1) / 2] + added + (i == 0 ? 0 : block);
      require(rows[i].flags().row_contiguous && rows[i].dtype() == table.dtype() &&
                  rows[i].shape(-2) >= needed,
              "draft: room for the rows");
    }
    const Kernels& run = kernels();
    if (added > 0) append(run, type, observed, counts, rows, at, end - added, added);
    Room x(type, static_cast<long>(block) * hidden);
    const long row_bytes = item(type) * hidden;
    for (int i = 0; i < block; i++) {
      require(0 <= ids[i] && ids[i] < table.shape(0), "draft: ids of the table's rows");
      std::memcpy(x.data() + i * row_bytes, table.data<char>() + ids[i] * row_bytes,
                  static_cast<std::size_t>(row_bytes));
    }
    for (std::size_t i = 0; i < layers.size(); i++) {
      run_layer(run, type, layers[i], rows[1 + 2 * i], rows[2 + 2 * i], first[i],
                at[i + 1] + added, end, block, x.data());
    }
    return tokens(run, type, x.data(), block, anchor, sampler);
  }

 private:
  static long item(Type type) {
    return type == Type::f32 ? 4 : 2;
  }

  void append(const Kernels& run, Type type, const Arrays& observed,
              const std::vector<int>& counts, const Arrays& rows, const std::vector<int>& at,
              int position, int added) const {
    const int hidden = fc->width();
    Room tapped(type, static_cast<long>(added) * fc->depth()),
        context(type, static_cast<long>(added) * hidden);
    char* into = tapped.data();
    for (std::size_t i = 0; i < observed.size(); i++) {
      const Packed packed{View(observed[i])};
      const long bytes = item(type) * counts[i] * fc->depth();
      std::memcpy(into, packed.data(), static_cast<std::size_t>(bytes));
      into += bytes;
    }
    fc->multiply(run, type, tapped.data(), context.data(), added);
    char* kept = const_cast<char*>(rows[0].data<char>()) + item(type) * at[0] * hidden;
    hidden_norm->apply(run, type, context.data(), kept, added, hidden);
    for (std::size_t i = 0; i < layers.size(); i++) {
      put_keys(run, type, *layers[i].attention, kept, added, position, rows[1 + 2 * i],
               rows[2 + 2 * i], at[i + 1], nullptr);
    }
  }

  // Keys and values of x's rows into the buffers from row `at` on; queries too unless null.
  void put_keys(const Kernels& run, Type type, const AttentionLayer& attention, const void* x,
                int count, int position, const mx::array& keys, const mx::array& values, int at,
                char* queries) const {
    const long bytes = item(type) * count * attention.width,
               head = item(type) * keys.shape(2) * attention.width;
    Room k(type, static_cast<long>(count) * attention.key_heads * attention.width),
        v(type, static_cast<long>(count) * attention.key_heads * attention.width);
    attention.project(run, type, x, count, position, {queries, k.data(), v.data(), nullptr});
    const long offset = item(type) * at * attention.width;
    for (int h = 0; h < attention.key_heads; h++) {
      std::memcpy(const_cast<char*>(keys.data<char>()) + h * head + offset, k.data() + h * bytes,
                  static_cast<std::size_t>(bytes));
      std::memcpy(const_cast<char*>(values.data<char>()) + h * head + offset, v.data() + h * bytes,
                  static_cast<std::size_t>(bytes));
    }
  }

  // convolution(body(convolution(norm x))) is added to x.
  template <class Body>
  void sublayer(const Kernels& run, Type type, const SharedNorm& before,
                const std::shared_ptr<const BlockConvolution>& around, int block, char* x,
                Body body) const {
    const int hidden = fc->width();
    const long count = static_cast<long>(block) * hidden;
    Room normed(type, count), inner(type, count), outer(type, count);
    before->apply(run, type, x, normed.data(), block, hidden);
    if (!around) {
      body(normed.data(), outer.data());
    } else {
      const int taps = around->base.shape(1), groups = around->own->width() / (2 * taps);
      Room own_kernels(type, static_cast<long>(block) * around->own->width());
      around->own->multiply(run, type, normed.data(), own_kernels.data(), block);
      const auto convolve = [&](int side, const char* from, char* to) {
        run.own_convolve({type, from, around->base.data<char>() + item(type) * side * taps * hidden,
                          own_kernels.data() + item(type) * side * taps * groups,
                          2L * taps * groups, to, block, taps, hidden, hidden / groups});
      };
      convolve(0, normed.data(), inner.data());
      body(inner.data(), normed.data());
      convolve(1, normed.data(), outer.data());
    }
    run.add({type, x, outer.data(), x, count});
  }

  void run_layer(const Kernels& run, Type type, const DraftLayer& layer, const mx::array& keys,
                 const mx::array& values, int first, int last, int position, int block,
                 char* x) const {
    const AttentionLayer& attention = *layer.attention;
    const int width = attention.width, heads = attention.heads;
    sublayer(run, type, layer.norm, layer.around_attention, block, x, [&](const char* in, char* out) {
      const long all = static_cast<long>(heads) * width;
      Room queries(type, block * all), attended(type, block * all);
      put_keys(run, type, attention, in, block, position, keys, values, last, queries.data());
      for (int h = 0; h < heads; h++) {
        const int kv = h / (heads / attention.key_heads);
        const long from = item(type) * (static_cast<long>(kv) * keys.shape(2) + first) * width;
        run.attention({type,
                       {queries.data() + item(type) * h * block * width, width},
                       {keys.data<char>() + from, width},
                       {values.data<char>() + from, width},
                       nullptr,
                       attended.data() + item(type) * h * width,
                       all,
                       attention.scale,
                       block,
                       last + block - first,
                       width,
                       attention.causal});
      }
      attention.o->multiply(run, type, attended.data(), out, block);
    });
    sublayer(run, type, layer.mlp_norm, layer.around_mlp, block, x, [&](const char* in, char* out) {
      layer.mlp->apply(run, type, in, out, block);
    });
  }

  std::vector<int> tokens(const Kernels& run, Type type, char* x, int block, int anchor,
                          const Sampler& sampler) const {
    const int hidden = fc->width(), count = block - 1, vocabulary = head->width();
    char* rows = x + item(type) * hidden;
    norm->apply(run, type, rows, rows, count, hidden);
    Room logits(type, static_cast<long>(count) * vocabulary);
    head->multiply(run, type, rows, logits.data(), count);
    std::vector<float> scaled;
    Type scored = type;
    const char* scores = logits.data();
    if (multiplier != 1.0f || softcap > 0.0f) {
      scaled = adjusted(type, logits.data(), static_cast<long>(count) * vocabulary);
      scored = Type::f32;
      scores = reinterpret_cast<const char*>(scaled.data());
    }
    if (selector) return selected(run, type, rows, scored, scores, count, anchor, sampler);
    std::vector<int> chosen;
    for (int t = 0; t < count; t++) {
      const std::uint64_t key = sampler.keys[static_cast<std::size_t>(t)];
      const int token = run.choose({scored, scores + item(scored) * t * vocabulary, vocabulary,
                                    sampler.temperature, sampler.top_k, sampler.top_p,
                                    sampler.min_score, static_cast<std::uint32_t>(key),
                                    static_cast<std::uint32_t>(key >> 32)});
      // A row without a choice (NaN): what comes behind it is worth nothing.
      if (token < 0) break;
      chosen.push_back(token);
    }
    return chosen;
  }

  std::vector<float> adjusted(Type type, const char* logits, long count) const {
    std::vector<float> made(static_cast<std::size_t>(count));
    for (long i = 0; i < count; i++) {
      float& value = made[static_cast<std::size_t>(i)];
      value = value_at(type, logits, i);
      value *= multiplier;
      if (softcap > 0.0f) value = std::tanh(value / softcap) * softcap;
    }
    return made;
  }

  // The walk of selector.py; only the scores of the candidates it comes through are computed.
  std::vector<int> selected(const Kernels& run, Type type, const char* rows, Type scored,
                            const char* logits, int count, int anchor,
                            const Sampler& sampler) const {
    const auto& s = *selector;
    const int all = s.count, rank = s.projection->width(),
              known = s.predecessors.shape(0), vocabulary = head->width();
    std::vector<char> projected(static_cast<std::size_t>(item(type)) * count * rank);
    s.projection->multiply(run, type, rows, projected.data(), count);
    std::vector<float> unary(static_cast<std::size_t>(all)), total(unary.size());
    std::vector<int> ids(unary.size()), chosen;
    int before = anchor;
    for (int t = 0; t < count; t++) {
      run.best({scored, logits + item(scored) * t * vocabulary, known, all, unary.data(),
                ids.data()});
      std::vector<float> left(static_cast<std::size_t>(rank));
      for (int r = 0; r < rank; r++) {
        left[static_cast<std::size_t>(r)] =
            value_at(s.predecessors, static_cast<long>(before) * rank + r) *
            value_at(type, projected.data(), static_cast<long>(t) * rank + r);
      }
      for (int c = 0; c < all; c++) {
        float sum = unary[static_cast<std::size_t>(c)];
        for (int r = 0; r < rank; r++) {
          sum += left[static_cast<std::size_t>(r)] *
                 value_at(s.successors,
                         static_cast<long>(ids[static_cast<std::size_t>(c)]) * rank + r);
        }
        total[static_cast<std::size_t>(c)] = sum;
      }
      if (sampler.temperature > 0.0f) {
        sample(total, ids, sampler, sampler.keys[static_cast<std::size_t>(t)]);
      }
      const auto winner = std::max_element(total.begin(), total.end()) - total.begin();
      before = ids[static_cast<std::size_t>(winner)];
      chosen.push_back(before);
    }
    return chosen;
  }

  // `filtered` of selector.py, and the noise that the verifier adds.
  static void sample(std::vector<float>& scores, const std::vector<int>& ids,
                     const Sampler& sampler, std::uint64_t key) {
    for (float& score : scores) score /= sampler.temperature;
    const float best = *std::max_element(scores.begin(), scores.end());
    double mass = 0.0;
    for (const float score : scores) mass += std::exp(score - best);
    std::vector<float> kept(scores.size());
    for (std::size_t c = 0; c < scores.size(); c++) {
      bool keep = !(sampler.min_p > 0.0f) || std::exp(scores[c] - best) >= sampler.min_p;
      if (keep && (sampler.top_p < 1.0f || sampler.top_k > 0)) {
        double better = 0.0;
        int rank = 0;
        for (const float other : scores) {
          if (!(other > scores[c])) continue;
          rank++;
          better += std::exp(other - best);
        }
        keep = (sampler.top_p >= 1.0f || better < sampler.top_p * mass) &&
               (sampler.top_k == 0 || rank < sampler.top_k);
      }
      kept[c] = keep ? scores[c] + kernels().noise(static_cast<std::uint32_t>(key),
                                                   static_cast<std::uint32_t>(key >> 32), ids[c])
                     : -INFINITY;
    }
    scores = kept;
  }
};

}  // namespace

void bind_drafter(nb::module_& m) {
  nb::class_<BlockConvolution>(m, "BlockConvolution")
      .def("__init__", [](BlockConvolution* self, const Weights* weights, const mx::array& base) {
        require(base.ndim() == 3 && base.shape(0) == 2, "convolution: base (2, taps, hidden)");
        new (self) BlockConvolution{own(weights), settled(base)};
      });
  nb::class_<DraftLayer>(m, "DraftLayer")
      .def(
          "__init__",
          [](DraftLayer* self, const Norm* norm, const AttentionLayer* attention,
             const BlockConvolution* around_attention, const Norm* mlp_norm, const Mlp* mlp,
             const BlockConvolution* around_mlp) {
            new (self) DraftLayer{own(norm),      own(mlp_norm),         own(attention),
                                  own(mlp),       own(around_attention), own(around_mlp)};
          },
          nb::arg("norm"), nb::arg("attention"), nb::arg("around_attention").none(),
          nb::arg("mlp_norm"), nb::arg("mlp"), nb::arg("around_mlp").none());
  nb::class_<Selector>(m, "Selector")
      .def("__init__", [](Selector* self, const mx::array& predecessors,
                          const mx::array& successors, const Weights* projection, int count) {
        require(predecessors.shape() == successors.shape() && predecessors.ndim() == 2 &&
                    predecessors.shape(1) == projection->width() &&
                    type_of(predecessors) != Type::f16 && type_of(successors) != Type::f16,
                "selector: codebooks (vocabulary, rank)");
        new (self)
            Selector{settled(predecessors), settled(successors), own(projection), count};
      });
  nb::class_<Sampler>(m, "Sampler")
      .def(
          "__init__",
          [](Sampler* self, float temperature, int top_k, float top_p, float min_p,
             float min_score, std::vector<std::uint64_t> keys) {
            new (self) Sampler{temperature, top_k, top_p, min_p, min_score, std::move(keys)};
          },
          nb::arg("temperature"), nb::arg("top_k"), nb::arg("top_p"), nb::arg("min_p"),
          nb::arg("min_score"), nb::arg("keys"));
  nb::class_<DraftStack>(m, "DraftStack")
      .def(
          "__init__",
          [](DraftStack* self, const Weights* fc, const Norm* hidden_norm, const Norm* norm,
             const std::vector<const DraftLayer*>& layers, const Weights* head,
             const Selector* selector, float multiplier, float softcap) {
            std::vector<DraftLayer> all;
            for (const auto* layer : layers) all.push_back(*layer);
            new (self) DraftStack{own(fc),   own(hidden_norm), own(norm), std::move(all),
                                  own(head), own(selector),    multiplier, softcap};
          },
          nb::arg("fc"), nb::arg("hidden_norm"), nb::arg("norm"), nb::arg("layers"),
          nb::arg("head"), nb::arg("selector").none(), nb::arg("multiplier"), nb::arg("softcap"))
      .def("propose",
           [](const DraftStack& self, Arrays observed, const std::vector<int>& counts, Arrays rows,
              const std::vector<int>& at, const std::vector<int>& first, int end, mx::array table, const std::vector<int>& ids,
              int anchor, const Sampler& sampler) {
             Arrays all = observed;
             all.insert(all.end(), rows.begin(), rows.end());
             all.push_back(table);
             nb::gil_scoped_release released;
             for (auto& one : all) one.eval();
             return self.propose(observed, counts, rows, at, first, end, table, ids, anchor, sampler);
           });
}

}  // namespace pillion
