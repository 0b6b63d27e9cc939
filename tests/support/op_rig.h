#pragma once
// What one operation of the CPU backend needs around it, for a config made by hand: random weights, state, scratch, a step.
#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/bf16.h"
#include "base/thread_pool.h"
#include "cpu/packed_weights.h"
#include "cpu/step_context.h"
#include "support/bounded.h"

namespace tetrad::test {

// Normal values rounded to bf16.
class RandomValues {
 public:
  explicit RandomValues(unsigned seed) : generator_(seed) {}
  float one(double scale) { return round_bf16(static_cast<float>(scale * normal_(generator_))); }
  std::vector<float> row(int count, double scale) {
    std::vector<float> values(static_cast<std::size_t>(std::max(count, 0)));
    for (float& v : values) v = one(scale);
    return values;
  }
  int below(int bound) { return static_cast<int>(generator_() % static_cast<unsigned>(bound)); }

 private:
  std::mt19937 generator_;
  std::normal_distribution<double> normal_;
};

// A linear weight [rows, columns] and its packed form.
struct Matrix {
  Matrix() = default;
  Matrix(int num_rows, int num_columns, RandomValues& random, double scale)
      : rows(num_rows), columns(num_columns), values(random.row(num_rows * num_columns, scale)) {}

  cpu::PackedLinear pack() const {
    std::vector<bf16> bits;
    for (const float v : values) bits.push_back(to_bf16(v));
    LinearView view;
    view.weight = {reinterpret_cast<const std::byte*>(bits.data()), DType::kBF16, {rows, columns}, "matrix"};
    return cpu::PackedLinear::pack(view);
  }

  // bf(W x)
  BoundedRow times(std::span<const Bounded> x) const {
    BoundedRow y;
    for (int n = 0; n < rows; ++n) {
      const BoundedRow w = exactly(std::span(values).subspan(static_cast<std::size_t>(n) * columns, static_cast<std::size_t>(columns)));
      y.push_back(bf(bounded_dot(w, x)));
    }
    return y;
  }

  int rows = 0, columns = 0;
  std::vector<float> values;
};

// bf(x rsqrt(mean(x^2) + eps) scale) over each of `groups` equal parts.
inline BoundedRow bounded_norm(std::span<const Bounded> x, std::span<const float> scale, double eps, int groups) {
  BoundedRow y;
  const std::size_t size = x.size() / static_cast<std::size_t>(groups);
  for (std::size_t first = 0; first < x.size(); first += size) {
    const auto part = x.subspan(first, size);
    const Bounded mean = bounded_dot(part, part) / Bounded(static_cast<double>(size));
    const Bounded inverse = Bounded(1.0) / bounded_sqrt(mean + Bounded(static_cast<float>(eps)));
    for (std::size_t i = 0; i < size; ++i) y.push_back(bf(part[i] * inverse * Bounded(scale[first + i])));
  }
  return y;
}

// A config with every width small and unlike the others.
inline Config small_config() {
  Config c;
  c.vocab_size = 50;
  c.hidden_size = 24;
  c.num_layers = 1;
  c.layer_kinds = {LayerKind::kGdn};
  c.max_positions = 256;
  c.hc_count = 4;
  c.hc_lowrank = 7;
  c.num_attention_heads = 2;
  c.num_kv_heads = 1;
  c.head_dim = 8;
  c.rope.rotary_dim = 4;
  c.gdn_key_heads = 2;
  c.gdn_value_heads = 2;
  c.gdn_key_dim = 8;
  c.gdn_value_dim = 8;
  c.gdn_conv_width = 4;
  c.num_experts = 5;
  c.experts_per_token = 2;
  c.moe_intermediate = 10;
  c.shared_expert_intermediate = 6;
  c.index_heads = 2;
  c.index_head_dim = 8;
  c.index_budget = 8;
  c.compress_ratio = 4;
  return c;
}

// State of a few slots and pages, scratch for a step, and one sequence in slot 0 whose pages lie out of order.
struct OpRig {
  explicit OpRig(Config c, int max_rows = 64, int threads = 2)
      : config(std::move(c)),
        state(config, make_state_layout(config), 4, 4),
        ws(config, max_rows, config.max_positions),
        pool(threads),
        rope(config.rope) {}

  // Calls body(StepContext&) for a step of `ids` that starts at `start`; the state is left as the body leaves it.
  template <class Body>
  void step(const std::vector<int>& ids, int start, std::span<const StateSave> saves, Body body, TapSink* taps = nullptr) {
    const SequenceRows rows{
        .first_row = 0, .num_rows = static_cast<int>(ids.size()), .start = start, .slot = 0, .pages = pages, .saves = saves};
    const StepBatch batch{.token_ids = ids, .sequences = {&rows, 1}, .logit_rows = {}, .taps = taps};
    cpu::StepContext context{config, batch, state, ws, pool, rope, result};
    body(context);
  }

  Config config;
  cpu::StateMemory state;
  cpu::Workspace ws;
  ThreadPool pool;
  cpu::RopeTable rope;
  StepResult result;
  std::vector<int> pages{2, 0, 3, 1};
};

}  // namespace tetrad::test
