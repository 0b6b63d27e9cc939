// The kernel of sample (contract in sample.h): what every block learns of the row, one threshold after the other, a draw.
#include "base/error.h"
#include "cuda/kernels/sample.h"
#include "cuda/kernels/sample_bins.cuh"
#include "cuda/kernels/sample_few.cuh"
#include "cuda/runtime/launch.cuh"

namespace tetrad::cuda {
namespace {

using namespace sampling;

template <int kPeers>
struct RowSample {
  RowScores<kPeers>& r;
  const DeviceChoice& c;
  ChosenToken* chosen;
  KeptKeys kept;

  __device__ RowSample(RowScores<kPeers>& scores, ChosenToken* to) : r(scores), c(scores.c), chosen(to) {}

  // Whether the choice was made from few scores, mostly about as good as the best of most groups: with top-k of few, or where these have
  // the mass that top-p wants. Where they are not far below the best, others have mass too, and it is not tried.
  __device__ bool choose_from_few() {
    constexpr int kMostGroups = kGroups / 4 * 3;  // some 350 scores where ids do not matter
    constexpr Mass kFarBelow = Mass{1} << (kWeightBits - 10);
    if (c.top_k > kGroups || (c.top_k <= 0 && c.top_p == 0)) return false;
    const unsigned least = r.reached_by(c.top_k > 0 ? c.top_k : kMostGroups);
    Mass all = 0, above;
    if (c.top_k <= 0) {
      if (r.weight(score_of(least)) > kFarBelow) return false;
      r.weigh(least, &all, &above);
      if (above < top_p_target(all, c.top_p)) return false;
    }
    int num_few;
    if (!gather_few(r, least, &num_few)) return false;
    if (r.rank == 0) choose_of_few(r, num_few, all, chosen);
    return true;
  }

  __device__ void keep_top_k() {
    unsigned key;
    Mass ties;
    BinnedScores<kPeers> counts(r, false);
    const auto wanted = [&](Mass) { return static_cast<Mass>(c.top_k); };
    if (counts.find(Bins::by_score(r.lowest_key(), r.best_key, -INFINITY), wanted, &key, &ties)) kept = {key, ties};
  }

  // Of what top-k leaves.
  __device__ void keep_top_p() {
    const unsigned low = max(r.lowest_key(), kept.key + 1);
    const Bins bins = Bins::by_score(low, r.best_key, score_of(r.best_key) + kLeastExponent / c.inverse_temperature);
    const Mass of_tie = kept.ties > 0 ? r.weight(score_of(kept.key)) : 0;
    unsigned key;
    Mass left;
    BinnedScores<kPeers> masses(r, true);
    if (masses.find(
            bins, [&](Mass above) { return top_p_target(above + kept.ties * of_tie, c.top_p); }, &key, &left)) {
      const Mass each = r.weight(score_of(key));
      kept = {key, (left + each - 1) / each};
    } else {
      kept.ties = (left - masses.total + of_tie - 1) / of_tie;
    }
  }

  // Whether other blocks may still read this one's memory.
  __device__ bool choose() {
    ChosenToken early;
    r.load();
    if (!r.sound) {
      const int id = r.first_unsound();
      early = {id, ChoiceOutcome::kUnsound, r.row()[id]};
    } else if (c.forced >= 0) {
      early = {c.forced, ChoiceOutcome::kChosen, 0.0f};
    } else if (r.best_key < kLeastKey) {
      early = {-1, c.mask >= 0 ? ChoiceOutcome::kNotAllowed : ChoiceOutcome::kNothing, 0.0f};
    } else if (c.inverse_temperature == 0.0f || score_of(r.best_key) > kLargestScore) {
      early = {r.first_best(), c.inverse_temperature == 0.0f ? ChoiceOutcome::kChosen : ChoiceOutcome::kToInfinity, 0.0f};
    } else {
      if (choose_from_few()) return false;
      if (c.top_k > 0) keep_top_k();
      if (c.top_p != 0) keep_top_p();
      draw(r, kept, chosen);
      return true;
    }
    if (r.rank == 0 && threadIdx.x == 0) *chosen = early;
    return true;
  }
};

template <int kPeers>
__device__ __forceinline__ void sample_row(const SampleArgs& a, int items, bool in_shared, std::size_t scratch_floats) {
  extern __shared__ uint4 block_keys[];
  __shared__ SampleMemory m;
  if constexpr (kPeers > 1) cluster_started();
  const int i = static_cast<int>(blockIdx.x) / kPeers, rank = static_cast<int>(blockIdx.x) % kPeers;
  const DeviceChoice choice = a.choices[i];
  auto* keys = reinterpret_cast<unsigned*>(block_keys);
  if (!in_shared) keys = reinterpret_cast<unsigned*>(a.scratch + i * scratch_floats + static_cast<std::size_t>(rank) * kThreads * items);
  RowScores<kPeers> scores(m, a, choice, keys, rank, items);
  const bool read_by_others = RowSample<kPeers>(scores, a.chosen + i).choose();
  if constexpr (kPeers > 1) {
    if (read_by_others) cluster_sync();
  }
}

__global__ void __launch_bounds__(kThreads, 1) sample_kernel(const SampleArgs a, int items, bool in_shared, std::size_t scratch_floats) {
  wait_for_previous();
  sample_row<1>(a, items, in_shared, scratch_floats);
}

__global__ void TETRAD_CLUSTER(kClusterBlocks) __launch_bounds__(kThreads, 1)
    sample_cluster_kernel(const SampleArgs a, int items, bool in_shared, std::size_t scratch_floats) {
  wait_for_previous();
  sample_row<kClusterBlocks>(a, items, in_shared, scratch_floats);
}

// A thread reads four scores at a time.
int items_of(int V, int peers) { return ceil_div(V, peers * kThreads * 4) * 4; }
std::size_t shared_bytes(int items) { return static_cast<std::size_t>(items) * kThreads * sizeof(unsigned); }

}  // namespace

SamplePlan sample_plan(int V, int peers, bool in_shared) {
  TETRAD_CHECK(V >= 1 && V <= kSampleMostIds, "a vocabulary of {} ids, at most {} are sampled from", V, kSampleMostIds);
  TETRAD_CHECK(peers == 1 || peers == kClusterBlocks, "{} blocks per choice", peers);
  SamplePlan plan{.peers = peers, .items = items_of(V, peers)};
  if (in_shared) {
    plan.shared_bytes = shared_bytes(plan.items);
    allow_shared("sample", peers > 1 ? sample_cluster_kernel : sample_kernel, plan.shared_bytes);
  } else {
    plan.scratch_floats = static_cast<std::size_t>(plan.items) * kThreads * static_cast<std::size_t>(peers);
  }
  return plan;
}

SamplePlan sample_plan(int V, const Stream& stream) {
  const int peers = stream.overlaps() ? kClusterBlocks : 1;  // both need compute capability 9.0
  const std::size_t bytes = shared_bytes(items_of(V, peers)) + sizeof(SampleMemory);
  return sample_plan(V, peers, bytes <= static_cast<std::size_t>(stream.shared_limit()));
}

void sample(const SampleArgs& a, const SamplePlan& plan, const Stream& stream) {
  TETRAD_CHECK(a.V >= 1 && a.V <= kSampleMostIds && a.limit >= 0 && a.limit <= a.V, "sample: V {}, limit {}", a.V, a.limit);
  TETRAD_CHECK(plan.scratch_floats == 0 || a.scratch != nullptr, "sample: no scratch for {} floats", plan.scratch_floats);
  const auto blocks = static_cast<unsigned>(a.num_choices * plan.peers);
  const double bytes = 4.0 * a.V * a.num_choices;
  launch({"sample", bytes, 0}, plan.peers > 1 ? sample_cluster_kernel : sample_kernel, {dim3(blocks), dim3(kThreads), plan.shared_bytes},
         stream, a, plan.items, plan.shared_bytes > 0, plan.scratch_floats);
}

}  // namespace tetrad::cuda
