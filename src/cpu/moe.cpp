#include "cpu/moe.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/bf16.h"
#include "cpu/mutants.h"
#include "cpu/vector_math.h"

namespace tetrad::cpu {
namespace {

// hidden [gate | up] of one row -> its first half: bf(bf(silu(gate)) * up).
void expert_activation(float* hidden, int F) {
  float* gate = hidden + (mutant(Mutant::kExpertGateUpSwapped) ? F : 0);
  const float* up = hidden + (mutant(Mutant::kExpertGateUpSwapped) ? 0 : F);
  silu_bf16(gate, gate, F);
  if (mutant(Mutant::kFloatExperts))
    for (int i = 0; i < F; ++i) hidden[i] = gate[i] * up[i];
  else
    mul_round_bf16(gate, up, hidden, F);
}

// Counting sort of the step's (t, k) pairs by expert: rows[t*EK + k] is the pair's place, first[e] the start of expert e.
void group_by_expert(const int* ids, int pairs, int E, int* first, int* rows) {
  std::fill_n(first, E + 1, 0);
  for (int i = 0; i < pairs; ++i) ++first[ids[i] + 1];
  for (int e = 0; e < E; ++e) first[e + 1] += first[e];
  for (int i = 0; i < pairs; ++i) rows[i] = first[ids[i]]++;
  for (int e = E; e > 0; --e) first[e] = first[e - 1];
  first[0] = 0;
}

class ExpertStep {
 public:
  ExpertStep(const PackedMoe& w, StepContext& step)
      : w_(w),
        step_(step),
        c_(step.config),
        T_(step.T()),
        D_(c_.hidden_size),
        F_(c_.moe_intermediate),
        FS_(c_.shared_expert_intermediate),
        EK_(c_.experts_per_token) {}

  void run(const float* x) {
    Workspace& ws = step_.ws;
    group_by_expert(ws.expert_ids.data(), T_ * EK_, c_.num_experts, ws.expert_first.data(), ws.expert_rows.data());
    gather(x);
    up(x);
    activate();
    down();
  }

 private:
  void gather(const float* x) {
    step_.pool.parallel_for(T_, 8, [&](int begin, int end) {
      for (int t = begin; t < end; ++t)
        for (int k = 0; k < EK_; ++k) {
          const int place = step_.ws.expert_rows[static_cast<std::size_t>(t * EK_ + k)];
          std::copy_n(x + static_cast<std::ptrdiff_t>(t) * D_, D_, step_.ws.grouped_x.data() + static_cast<std::ptrdiff_t>(place) * D_);
        }
    });
  }

  template <class MakeJob>
  void each_expert(MakeJob make_job) {
    for (int e = 0; e < c_.num_experts; ++e) {
      const int first = step_.ws.expert_first[static_cast<std::size_t>(e)];
      const int rows = step_.ws.expert_first[static_cast<std::size_t>(e) + 1] - first;
      if (rows > 0) step_.ws.jobs.push_back(make_job(w_.experts[static_cast<std::size_t>(e)], first, rows));
    }
  }

  void up(const float* x) {
    Workspace& ws = step_.ws;
    ws.jobs.clear();
    each_expert([&](const PackedExpert& e, int first, int rows) {
      return MatmulJob{.w = &e.gate_up,
                       .T = rows,
                       .x = ws.grouped_x.data() + static_cast<std::ptrdiff_t>(first) * D_,
                       .ldx = D_,
                       .y = ws.grouped_hidden.data() + static_cast<std::ptrdiff_t>(first) * 2 * F_,
                       .ldy = 2 * F_};
    });
    ws.jobs.push_back({.w = &w_.shared.gate_up, .T = T_, .x = x, .ldx = D_, .y = ws.shared_hidden.data(), .ldy = 2 * FS_ + 1});
    matmul_jobs(ws.jobs, step_.pool);
  }

  void activate() {
    Workspace& ws = step_.ws;
    step_.pool.parallel_for(T_, 1, [&](int begin, int end) {
      for (int t = begin; t < end; ++t) {
        for (int k = 0; k < EK_; ++k) expert_activation(ws.grouped_hidden.data() + static_cast<std::ptrdiff_t>(t * EK_ + k) * 2 * F_, F_);
        expert_activation(ws.shared_hidden.data() + static_cast<std::ptrdiff_t>(t) * (2 * FS_ + 1), FS_);
      }
    });
  }

  void down() {
    Workspace& ws = step_.ws;
    ws.jobs.clear();
    each_expert([&](const PackedExpert& e, int first, int rows) {
      return MatmulJob{.w = &e.down,
                       .T = rows,
                       .x = ws.grouped_hidden.data() + static_cast<std::ptrdiff_t>(first) * 2 * F_,
                       .ldx = 2 * F_,
                       .y = ws.grouped_out.data() + static_cast<std::ptrdiff_t>(first) * D_,
                       .ldy = D_};
    });
    ws.jobs.push_back(
        {.w = &w_.shared.down, .T = T_, .x = ws.shared_hidden.data(), .ldx = 2 * FS_ + 1, .y = ws.shared_out.data(), .ldy = D_});
    matmul_jobs(ws.jobs, step_.pool);
  }

  const PackedMoe& w_;
  StepContext& step_;
  const Config& c_;
  int T_, D_, F_, FS_, EK_;
};

// routed[d] = bf(sum_k bf(weight_k * E_k[d])), k in descending weight; the sum in float as the reference's grouped path does.
void combine_experts(const Config& c, const Workspace& ws, int t, float* routed) {
  const int EK = c.experts_per_token;
  const std::size_t pair = static_cast<std::size_t>(t) * static_cast<std::size_t>(EK);
  std::fill_n(routed, c.hidden_size, 0.0f);
  for (int k = 0; k < EK; ++k) {
    const float weight = ws.expert_weights[pair + static_cast<std::size_t>(k)];
    const float* out =
        ws.grouped_out.data() + static_cast<std::ptrdiff_t>(ws.expert_rows[pair + static_cast<std::size_t>(k)]) * c.hidden_size;
    add_rounded_product(weight, out, routed, c.hidden_size);
  }
  round_bf16_array(routed, c.hidden_size);
}

void tap_routing(int layer, const StepContext& step) {
  const int T = step.T(), EK = step.config.experts_per_token;
  step.tap(layer, "moe.weights", step.ws.expert_weights.data(), {{T, EK}});
  if (step.batch.taps == nullptr) return;
  const std::vector<std::int64_t> ids(step.ws.expert_ids.begin(), step.ws.expert_ids.begin() + static_cast<std::ptrdiff_t>(T) * EK);
  step.batch.taps->record_ids(layer, "moe.experts", ids, {T, EK});
}

}  // namespace

bool route(const float* logits, int E, int EK, bool renormalise, float* probs, int* ids, float* weights) {
  const bool finite = std::all_of(logits, logits + E, [](float l) { return std::isfinite(l); });
  if (!finite) {
    for (int k = 0; k < EK; ++k) ids[k] = k, weights[k] = std::numeric_limits<float>::quiet_NaN();
    return false;
  }
  std::copy_n(logits, E, probs);
  softmax(probs, probs, E);
  // Insertion into a short sorted list: a later expert displaces an earlier one only with a strictly larger probability.
  int count = 0;
  for (int e = 0; e < E; ++e) {
    if (count == EK && !(probs[e] > probs[ids[EK - 1]])) continue;
    int place = count < EK ? count++ : EK - 1;
    for (; place > 0 && probs[e] > probs[ids[place - 1]]; --place) ids[place] = ids[place - 1];
    ids[place] = e;
  }
  float sum = 0.0f;
  for (int k = 0; k < EK; ++k) sum += weights[k] = probs[ids[k]];
  for (int k = 0; k < EK; ++k) weights[k] = round_bf16(renormalise && !mutant(Mutant::kRouterNoRenorm) ? weights[k] / sum : weights[k]);
  if (mutant(Mutant::kRouterTopkOneFewer)) weights[EK - 1] = 0.0f;
  return true;
}

void moe_layer(const PackedMoe& w, int layer, const float* x, float* y, StepContext& step) {
  const Config& c = step.config;
  Workspace& ws = step.ws;
  const int T = step.T(), E = c.num_experts, EK = c.experts_per_token, D = c.hidden_size;
  matmul(w.router, {.T = T, .x = x, .ldx = D, .y = ws.router_logits.data(), .ldy = E}, step.pool);
  step.tap(layer, "moe.router_logits", ws.router_logits.data(), {{T, E}});
  for (int t = 0; t < T; ++t) {
    const std::ptrdiff_t row = t;
    if (!route(ws.router_logits.data() + row * E, E, EK, c.norm_topk_prob, ws.router_probs.data() + row * E,
               ws.expert_ids.data() + row * EK, ws.expert_weights.data() + row * EK))
      step.fault(t, layer, "router logits");
  }
  tap_routing(layer, step);
  ExpertStep(w, step).run(x);

  float* routed = ws.grouped_x.data();  // the gathered inputs are spent: reuse their room for the combined rows
  step.pool.parallel_for(T, 1, [&](int begin, int end) {
    for (int t = begin; t < end; ++t) combine_experts(c, ws, t, routed + static_cast<std::ptrdiff_t>(t) * D);
  });
  step.tap(layer, "moe.routed_out", routed, {{T, D}});
  step.tap(layer, "moe.shared_out", ws.shared_out.data(), {{T, D}});
  const int shared_width = 2 * c.shared_expert_intermediate + 1;
  step.pool.parallel_for(T, 1, [&](int begin, int end) {
    for (int t = begin; t < end; ++t) {
      float gate = 0.0f;
      sigmoid_bf16(ws.shared_hidden.data() + static_cast<std::ptrdiff_t>(t) * shared_width + shared_width - 1, &gate, 1);
      if (mutant(Mutant::kSharedGateMissing)) gate = 1.0f;
      const std::ptrdiff_t row = static_cast<std::ptrdiff_t>(t) * D;
      for (int d = 0; d < D; ++d)
        y[row + d] = round_bf16(routed[row + d] + round_bf16(gate * ws.shared_out[static_cast<std::size_t>(row + d)]));
    }
  });
}

}  // namespace tetrad::cpu
