#include "cpu/qsa.h"

#include <algorithm>
#include <cmath>

#include "base/bf16.h"
#include "base/error.h"
#include "cpu/attention.h"
#include "cpu/mutants.h"
#include "cpu/norm.h"
#include "cpu/qsa_index.h"
#include "cpu/vector_math.h"

namespace tetrad::cpu {
namespace {

struct Shape {
  explicit Shape(const Config& c)
      : HQ(c.num_attention_heads),
        HKV(c.num_kv_heads),
        DH(c.head_dim),
        HI(c.index_heads),
        DI(c.index_head_dim),
        R(c.compress_ratio),
        DR(c.rope.rotary_dim),
        k(2 * HQ * DH),
        v(k + HKV * DH),
        index_q(v + HKV * DH),
        index_k(index_q + HI * DI),
        row(index_k + DI) {}
  int HQ, HKV, DH, HI, DI, R, DR;
  int k, v, index_q, index_k, row;  // offsets in a projected row; its length
  int query(int hd) const { return hd * 2 * DH + (mutant(Mutant::kSwapQueryAndGate) ? DH : 0); }
  int output_gate(int hd) const { return hd * 2 * DH + (mutant(Mutant::kSwapQueryAndGate) ? 0 : DH); }
};

// The paged caches of one layer for one sequence.
struct Cache {
  Cache(StepContext& step, const SequenceRows& sequence, int layer)
      : state(step.state), pages(sequence.pages), page_tokens(step.state.layout().page_tokens), R(step.config.compress_ratio) {
    for (const StateSection& s : state.layout().page_sections) {
      if (s.layer != layer || s.kind == StateKind::kDraft) continue;
      if (s.kind == StateKind::kIndexKeys)
        block_keys = &s;
      else
        (k == nullptr ? k : v) = &s;  // K comes before V in the layout
    }
  }
  bf16* row(const StateSection& s, int index, int per_page) const {
    std::byte* page = state.page(pages[static_cast<std::size_t>(index / per_page)]);
    return reinterpret_cast<bf16*>(page + s.offset + static_cast<std::size_t>(index % per_page) * s.row_bytes);
  }
  bf16* k_row(int position) const { return row(*k, position, page_tokens); }
  bf16* v_row(int position) const { return row(*v, position, page_tokens); }
  bf16* block_key(int block) const { return row(*block_keys, block, page_tokens / R); }

  StateMemory& state;
  std::span<const int> pages;
  int page_tokens, R;
  const StateSection *k = nullptr, *v = nullptr, *block_keys = nullptr;
};

// Norms of the queries and keys of one projected row, in place.
void norm_row(const PackedQsa& w, const Shape& s, const IndexGeometry& g, float* row) {
  for (int hd = 0; hd < s.HQ; ++hd) rms_norm_row(row + s.query(hd), w.q_norm_scale.data(), g.eps, 1, s.DH, row + s.query(hd));
  for (int h = 0; h < s.HKV; ++h) rms_norm_row(row + s.k + h * s.DH, w.k_norm_scale.data(), g.eps, 1, s.DH, row + s.k + h * s.DH);
}

// Rotates them, and prepares the index queries.
void rotate_row(const PackedQsa& w, const Shape& s, const IndexGeometry& g, const float* cos, const float* sin, float* row) {
  for (int hd = 0; hd < s.HQ; ++hd) RopeTable::rotate(row + s.query(hd), cos, sin, s.DR);
  for (int h = 0; h < s.HKV; ++h) RopeTable::rotate(row + s.k + h * s.DH, cos, sin, s.DR);
  for (int j = 0; j < s.HI; ++j) index_query(g, w.index_q_norm_scale.data(), cos, sin, s.DR, row + s.index_q + j * s.DI);
}

// Writes K and V of rows [begin, end) to the pages, pools the blocks that become complete, keeps the raw keys of the incomplete one.
void append_segment(const PackedQsa& w, const Shape& s, const IndexGeometry& g, const Cache& cache, const SequenceRows& sequence, int begin,
                    int end, bf16* pending, const float* projected, const StepContext& step) {
  float* raw = step.ws.raw_index_keys.data();
  float* kb = raw + static_cast<std::ptrdiff_t>(s.R) * s.DI;
  float* cos = step.ws.block_rope.data();
  float* sin = cos + s.DR / 2;
  const int carried = (sequence.start + begin) % s.R;
  to_float_array(pending, raw, carried * s.DI);
  for (int i = begin; i < end; ++i) {
    const int position = sequence.start + i;
    const float* row = projected + static_cast<std::ptrdiff_t>(sequence.first_row + i) * s.row;
    to_bf16_array(row + s.k, cache.k_row(position), s.HKV * s.DH);
    to_bf16_array(row + s.v, cache.v_row(position), s.HKV * s.DH);
    const int in_block = position % s.R;
    std::copy_n(row + s.index_k, s.DI, raw + static_cast<std::ptrdiff_t>(in_block) * s.DI);
    if (in_block < s.R - 1) {
      to_bf16_array(row + s.index_k, pending + static_cast<std::ptrdiff_t>(in_block) * s.DI, s.DI);
      continue;
    }
    const int block = position / s.R;
    step.rope.angles(mutant(Mutant::kRopeAtBlockEnd) ? position : block * s.R, cos, sin);
    pool_block_key(g, raw, w.index_k_norm_scale.data(), cos, sin, s.DR, kb);
    to_bf16_array(kb, cache.block_key(block), s.DI);
    std::fill_n(pending, static_cast<std::ptrdiff_t>(s.R - 1) * s.DI, bf16{});  // nothing pending has one representation
  }
}

// One query row of the step while its group is worked on.
struct QueryRow {
  const SequenceRows* sequence;
  int row;  // packed row
  int position;
  int num_blocks;  // complete blocks it sees
};

// Rows are taken kRowGroup at a time: score (row x pages in parallel), select (rows), attend (row x head), so that neither one long
// row nor many short ones leave a core idle, and scratch stays small.
class Attention {
 public:
  Attention(int layer, StepContext& step)
      : s_(step.config),
        g_{s_.HI, s_.DI, s_.R, step.config.block_topk(), static_cast<float>(step.config.rms_norm_eps)},
        layer_(layer),
        step_(step),
        max_blocks_(static_cast<int>(step.ws.block_scores.size()) / Workspace::kRowGroup),
        attended_(step.config.index_budget + step.config.compress_ratio) {}

  const IndexGeometry& geometry() const { return g_; }
  const Shape& shape() const { return s_; }

  // out [T, HQ*DH] gated attention output.
  void run(const float* projected, float* out) {
    int count = 0;
    QueryRow group[Workspace::kRowGroup];
    for (const SequenceRows& sequence : step_.batch.sequences)
      for (int i = 0; i < sequence.num_rows; ++i) {
        const int position = sequence.start + i;
        group[count++] = {&sequence, sequence.first_row + i, position, (position + 1) / s_.R};
        if (count == Workspace::kRowGroup) run_group({group, static_cast<std::size_t>(count)}, projected, out), count = 0;
      }
    run_group({group, static_cast<std::size_t>(count)}, projected, out);
  }

 private:
  void run_group(std::span<const QueryRow> rows, const float* projected, float* out) {
    if (rows.empty()) return;
    score(rows, projected);
    int counts[Workspace::kRowGroup];
    bool ranked[Workspace::kRowGroup];
    const int num_rows = static_cast<int>(rows.size());
    step_.pool.parallel_for(num_rows, 1, [&](int begin, int end) {
      for (int i = begin; i < end; ++i) {
        ranked[i] = can_be_ranked(rows[static_cast<std::size_t>(i)], i);
        counts[i] = select(rows[static_cast<std::size_t>(i)], i);
      }
    });
    for (int i = 0; i < num_rows; ++i)
      if (!ranked[i]) step_.fault(rows[static_cast<std::size_t>(i)].row, layer_, "index scores");
    if (step_.batch.taps != nullptr)
      for (int i = 0; i < num_rows; ++i) tap_selection(rows[static_cast<std::size_t>(i)], i, counts[i]);
    step_.pool.parallel_for(num_rows * s_.HQ, 1, [&](int begin, int end) {
      for (int unit = begin; unit < end; ++unit)
        attend(rows[static_cast<std::size_t>(unit / s_.HQ)], unit / s_.HQ, unit % s_.HQ, counts[unit / s_.HQ], projected, out);
    });
  }

  bool scored(const QueryRow& row) const { return row.num_blocks > g_.topk || mutant(Mutant::kSelectionOffByOne); }

  void score(std::span<const QueryRow> rows, const float* projected) {
    const int page_tokens = step_.state.layout().page_tokens;
    const int per_page = page_tokens / s_.R;
    int most = 0;
    for (const QueryRow& row : rows)
      if (scored(row)) most = std::max(most, row.num_blocks);
    const int pages = (most + per_page - 1) / per_page;
    if (pages == 0) return;
    step_.pool.parallel_for(static_cast<int>(rows.size()) * pages, 4, [&](int begin, int end) {
      for (int unit = begin; unit < end; ++unit) {
        const int i = unit / pages, first = unit % pages * per_page;
        const QueryRow& row = rows[static_cast<std::size_t>(i)];
        if (!scored(row) || first >= row.num_blocks) continue;
        const Cache cache(step_, *row.sequence, layer_);
        const float* q = projected + static_cast<std::ptrdiff_t>(row.row) * s_.row + s_.index_q;
        block_scores(g_, q, cache.block_key(first), std::min(per_page, row.num_blocks - first), scores(i) + first);
      }
    });
  }

  // Scores only choose among tokens whose values are sound, so a NaN among them would leave no trace in what follows.
  bool can_be_ranked(const QueryRow& row, int i) {
    return !scored(row) || std::none_of(scores(i), scores(i) + row.num_blocks, [](float s) { return std::isnan(s); });
  }

  int select(const QueryRow& row, int i) {
    const Cache cache(step_, *row.sequence, layer_);
    int* blocks = step_.ws.selected_blocks.data() + static_cast<std::ptrdiff_t>(i) * (g_.topk + 1);
    std::uint64_t* order = step_.ws.block_order.data() + static_cast<std::ptrdiff_t>(i) * max_blocks_;
    int count = select_blocks({scores(i), static_cast<std::size_t>(row.num_blocks)}, g_.topk, order, blocks);
    if (mutant(Mutant::kOwnBlockAlways) && count == g_.topk && blocks[count - 1] != row.num_blocks - 1 && (row.position + 1) % s_.R == 0)
      blocks[count - 1] = row.num_blocks - 1;
    count = expand_selection(g_, {blocks, static_cast<std::size_t>(count)}, row.position, positions(i));
    gather(cache, i, count);
    return count;
  }

  void gather(const Cache& cache, int i, int count) {
    for (int n = 0; n < count; ++n) {
      k_rows(i)[n] = cache.k_row(positions(i)[n]);
      v_rows(i)[n] = cache.v_row(positions(i)[n]);
    }
  }

  void tap_selection(const QueryRow& row, int i, int& count) {
    std::vector<int> chosen(positions(i), positions(i) + count);
    const std::size_t num_scores = scored(row) ? static_cast<std::size_t>(row.num_blocks) : 0;
    step_.batch.taps->record_selected(layer_, row.row, chosen, {scores(i), num_scores});
    TETRAD_CHECK(!chosen.empty() && static_cast<int>(chosen.size()) <= attended_ && chosen.back() <= row.position,
                 "{} positions for the query at {}", chosen.size(), row.position);
    count = static_cast<int>(chosen.size());
    std::copy(chosen.begin(), chosen.end(), positions(i));
    gather(Cache(step_, *row.sequence, layer_), i, count);
  }

  void attend(const QueryRow& row, int i, int hd, int count, const float* projected, float* out) {
    const int group = s_.HQ / s_.HKV;
    const int kv = (hd / group + (mutant(Mutant::kKvHeadOff) ? 1 : 0)) % s_.HKV;
    const float* q = projected + static_cast<std::ptrdiff_t>(row.row) * s_.row;
    float* o = out + (static_cast<std::ptrdiff_t>(row.row) * s_.HQ + hd) * s_.DH;
    float* probabilities = step_.ws.attention_scores.data() + (static_cast<std::ptrdiff_t>(i) * s_.HQ + hd) * attended_;
    attend_head({.num_rows = count,
                 .DH = s_.DH,
                 .head_offset = kv * s_.DH,
                 .q = q + s_.query(hd),
                 .k_rows = k_rows(i),
                 .v_rows = v_rows(i),
                 .scratch = probabilities,
                 .out = o});
    if (mutant(Mutant::kOutputGateMissing)) return;
    float* gate = probabilities;  // free again, but only as long as the selection: gate in pieces
    for (int first = 0; first < s_.DH; first += attended_) {
      const int n = std::min(attended_, s_.DH - first);
      sigmoid_bf16(q + s_.output_gate(hd) + first, gate, n);
      for (int d = 0; d < n; ++d) o[first + d] = round_bf16(o[first + d] * gate[d]);
    }
  }

  float* scores(int i) { return step_.ws.block_scores.data() + static_cast<std::ptrdiff_t>(i) * max_blocks_; }
  int* positions(int i) { return step_.ws.selected.data() + static_cast<std::ptrdiff_t>(i) * attended_; }
  const bf16** k_rows(int i) { return step_.ws.k_rows.data() + static_cast<std::ptrdiff_t>(i) * attended_; }
  const bf16** v_rows(int i) { return step_.ws.v_rows.data() + static_cast<std::ptrdiff_t>(i) * attended_; }

  Shape s_;
  IndexGeometry g_;
  int layer_;
  StepContext& step_;
  int max_blocks_, attended_;
};

}  // namespace

void qsa_layer(const PackedQsa& w, int layer, const float* x, float* y, StepContext& step) {
  const Config& c = step.config;
  Attention attention(layer, step);
  const Shape& s = attention.shape();
  const int T = step.T();
  float* projected = step.ws.projected.data();
  float* core = step.ws.heads.data();

  matmul(w.in, {.T = T, .x = x, .ldx = c.hidden_size, .y = projected, .ldy = s.row}, step.pool);
  step.tap(layer, "qsa.q_proj", projected, {{T, 2 * s.HQ * s.DH}, s.row});
  step.tap(layer, "qsa.v_proj", projected + s.v, {{T, s.HKV * s.DH}, s.row});
  step.tap(layer, "qsa.index_qk", projected + s.index_q, {{T, (s.HI + 1) * s.DI}, s.row});
  const auto each_row = [&](auto body) {
    step.pool.parallel_for(T, 1, [&](int begin, int end) {
      for (int t = begin; t < end; ++t) body(t, projected + static_cast<std::ptrdiff_t>(t) * s.row);
    });
  };
  each_row([&](int, float* row) { norm_row(w, s, attention.geometry(), row); });
  step.tap(layer, "qsa.q_normed", projected + s.query(0), {{T, s.HQ, s.DH}, s.row, s.HQ, 2 * s.DH});
  step.tap(layer, "qsa.k_normed", projected + s.k, {{T, s.HKV, s.DH}, s.row});
  each_row([&](int t, float* row) {
    const std::ptrdiff_t angle = static_cast<std::ptrdiff_t>(t) * (s.DR / 2);
    rotate_row(w, s, attention.geometry(), step.ws.rope_cos.data() + angle, step.ws.rope_sin.data() + angle, row);
  });
  for (const SequenceRows& sequence : step.batch.sequences) {
    const Cache cache(step, sequence, layer);
    for_each_segment(sequence, [&](int begin, int end, int save_slot) {
      auto* pending = step.state.section<bf16>(sequence.slot, StateKind::kIndexKeys, layer);
      append_segment(w, s, attention.geometry(), cache, sequence, begin, end, pending, projected, step);
      if (save_slot >= 0) step.state.copy_section(save_slot, sequence.slot, StateKind::kIndexKeys, layer);
    });
  }
  attention.run(projected, core);
  step.tap(layer, "qsa.gated", core, {{T, s.HQ * s.DH}});
  matmul(w.out, {.T = T, .x = core, .ldx = s.HQ * s.DH, .y = y, .ldy = c.hidden_size}, step.pool);
}

}  // namespace tetrad::cpu
