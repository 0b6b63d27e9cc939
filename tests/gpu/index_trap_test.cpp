// Indices that kernels read from device memory: one out of its range must stop the kernel on the device. Each case breaks one index of a
// valid step and runs in a process of its own (a trap takes the whole context with it); the parent wants to hear that the device trapped,
// and fails when the child ran nothing, finished, read beside its memory, or was refused by a check on the host. The valid step itself
// finishes.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <vector>

#include "one_launch.h"

namespace tetrad::cuda {
namespace {

using namespace test;  // the launches

constexpr int kTrapped = 41, kFinished = 42, kOtherError = 43, kRefused = 44;

// --- Cases ---

struct Kernel {
  const char* name;
  int rows;  // of sequence 0
  void (*run)(Step&);
};
constexpr Kernel kEmbed{"embed", 4, run_embed}, kTakeRows{"take_rows", 4, run_take_rows}, kWiden{"widen_logits", 4, run_widen_logits},
    kLengths{"advance_lengths", 4, run_advance_lengths}, kConv{"gdn_conv", 4, run_gdn_conv<4>},
    kConvAny{"gdn_conv_of_any_width", 4, run_gdn_conv<3>}, kMoveWindow{"gdn_move_window", 4, run_gdn_move_window},
    kRecurrence{"gdn_recurrence", 4, run_gdn_recurrence}, kGdnStep{"gdn_step", 4, run_gdn_step},
    kPrepare{"qsa_prepare", 4, run_qsa_prepare}, kScores{"qsa_scores_of_any_indexer", 4, run_qsa_scores<false>},
    kScoresPublished{"qsa_scores", 4, run_qsa_scores<true>}, kSelect{"qsa_select", 4, run_qsa_select},
    kSelectMany{"qsa_select_of_many_rows", kManyRows, run_qsa_select}, kAttend{"qsa_attend_of_few_rows", 4, run_qsa_attend},
    kAttendMany{"qsa_attend_of_many_rows", kManyRows, run_qsa_attend}, kGroup{"moe_group", 4, run_moe_group},
    kCombine{"moe_combine", 4, run_moe_combine}, kFinish{"moe_finish", 4, run_moe_finish},
    kLinearFew{"linear_few", 4, run_linear_groups<32>}, kLinearMany{"linear_many", kManyRows, run_linear_groups<32>},
    kLinearWgmma{"linear_wgmma", kManyRows, run_linear_groups<640>}, kGateUp{"moe_gate_up_few", 4, run_moe_gate_up_few},
    kDown{"moe_down_few", 4, run_moe_down_few}, kRowIds{"ple_row_ids", 4, run_ple_row_ids}, kGather{"ple_gather", 4, run_ple_gather},
    kConvolve{"ple_convolve", 4, run_ple_convolve}, kHistory{"move_history", 4, run_move_history}, kSample{"sample", 4, run_sample};

struct Case {
  Kernel kernel;
  const char* broken;
  void (*break_it)(Step&);
};

std::vector<Case> broken_cases() {
  const auto sequence_below = [](Step& s) { s.sequence[0] = -1; };
  const auto sequence_above = [](Step& s) { s.sequence[0] = 2; };
  const auto slot_below = [](Step& s) { s.slot[1] = -1; };
  const auto slot_above = [](Step& s) { s.slot[1] = kSlots; };
  const auto save_above = [](Step& s) { s.save_slot[1] = kSlots; };
  const auto page_below = [](Step& s) { std::fill(s.pages.begin(), s.pages.end(), -1); };
  const auto page_above = [](Step& s) { std::fill(s.pages.begin(), s.pages.end(), kPages); };
  const auto position_past_the_pages = [](Step& s) { s.position[3] = kMaxPages * kPageTokens; };
  const auto position_past_the_blocks = [](Step& s) { s.position[3] = kMaxPages * kPageTokens + 3; };
  const auto place_above = [](Step& s) { s.place[3] = s.T * kPicks; };
  const auto place_below = [](Step& s) { s.place[3] = -1; };
  const auto x_row_above = [](Step& s) { s.token[3] = s.T; };
  const auto x_row_below = [](Step& s) { s.token[3] = -1; };
  const auto tile_of_no_group = [](Step& s) { s.tiles[1].x = kExperts; };
  const auto tile_before_its_group = [](Step& s) { s.tiles.back().y = 0; };
  const auto group_past_the_rows = [](Step& s) { s.first[3] = s.first[4] = static_cast<int>(s.token.size()) + 1; };
  const auto group_backwards = [](Step& s) { s.first[1] = s.first[2] + 1; };
  return {
      {kEmbed, "token_below", [](Step& s) { s.token_ids[3] = -1; }},
      {kEmbed, "token_above", [](Step& s) { s.token_ids[3] = kVocab; }},
      {kTakeRows, "row_below", [](Step& s) { s.logit_rows[1] = -1; }},
      {kTakeRows, "row_above", [](Step& s) { s.logit_rows[1] = s.T; }},
      {kWiden, "row_below", [](Step& s) { s.logit_rows[1] = -1; }},
      {kWiden, "row_above", [](Step& s) { s.logit_rows[1] = s.T; }},
      {kSample, "row_below", [](Step& s) { s.choice_rows[1] = -1; }},
      {kSample, "row_above", [](Step& s) { s.choice_rows[1] = 2; }},
      {kSample, "mask_above", [](Step& s) { s.choice_masks[0] = 1; }},
      {kSample, "adjusted_id_below", [](Step& s) { s.adjusted[1] = -1; }},
      {kSample, "adjusted_id_above", [](Step& s) { s.adjusted[1] = kVocab; }},
      {kSample, "adjustments_past_the_last", [](Step& s) { s.adjusted.pop_back(); }},
      {kSample, "hole_above", [](Step& s) { s.vocabulary_holes[0] = kVocab; }},
      {kLengths, "slot_below", slot_below},
      {kLengths, "slot_above", slot_above},
      {kLengths, "save_slot_above", save_above},
      {kConv, "sequence_below", sequence_below},
      {kConv, "sequence_above", sequence_above},
      {kConv, "slot_below", slot_below},
      {kConv, "slot_above", slot_above},
      {kConvAny, "sequence_below", sequence_below},
      {kConvAny, "slot_above", slot_above},
      {kMoveWindow, "slot_above", slot_above},
      {kMoveWindow, "save_slot_above", save_above},
      {kRecurrence, "slot_below", slot_below},
      {kRecurrence, "slot_above", slot_above},
      {kRecurrence, "save_slot_above", save_above},
      {kGdnStep, "slot_below", slot_below},
      {kGdnStep, "slot_above", slot_above},
      {kGdnStep, "save_slot_above", save_above},
      {kPrepare, "sequence_below", sequence_below},
      {kPrepare, "sequence_above", sequence_above},
      {kPrepare, "slot_above", slot_above},
      {kPrepare, "save_slot_above", save_above},
      {kPrepare, "position_below", [](Step& s) { s.position[2] = -5; }},
      {kPrepare, "position_past_the_pages", position_past_the_pages},
      {kPrepare, "page_below", page_below},
      {kPrepare, "page_above", page_above},
      {kScores, "sequence_above", sequence_above},
      {kScores, "page_below", page_below},
      {kScores, "page_above", page_above},
      {kScores, "position_past_the_blocks", position_past_the_blocks},
      {kScoresPublished, "sequence_above", sequence_above},
      {kScoresPublished, "page_above", page_above},
      {kScoresPublished, "position_past_the_blocks", position_past_the_blocks},
      {kSelect, "position_past_the_blocks", position_past_the_blocks},
      {kSelectMany, "position_past_the_blocks", position_past_the_blocks},
      {kAttend, "count_of_none", [](Step& s) { s.counts[2] = 0; }},
      {kAttend, "count_above", [](Step& s) { s.counts[2] = 13; }},
      {kAttend, "position_below", [](Step& s) { s.attended[12] = -1; }},
      {kAttend, "position_after_the_row", [](Step& s) { s.attended[12 + 2] = s.position[1] + 1; }},
      {kAttend, "sequence_above", sequence_above},
      {kAttend, "page_above", page_above},
      {kAttendMany, "count_of_none", [](Step& s) { s.counts[2] = 0; }},
      {kAttendMany, "count_above", [](Step& s) { s.counts[2] = 13; }},
      {kAttendMany, "position_below", [](Step& s) { s.attended[12] = -1; }},
      {kAttendMany, "position_after_the_row", [](Step& s) { s.attended[12 + 2] = s.position[1] + 1; }},
      {kAttendMany, "page_below", page_below},
      {kGroup, "expert_below", [](Step& s) { s.expert_ids[3] = -1; }},
      {kGroup, "expert_above", [](Step& s) { s.expert_ids[3] = kExperts; }},
      {kCombine, "place_below", place_below},
      {kCombine, "place_above", place_above},
      {kFinish, "place_below", place_below},
      {kFinish, "place_above", place_above},
      {kLinearFew, "expert_below", [](Step& s) { s.active[0] = -1; }},
      {kLinearFew, "expert_above", [](Step& s) { s.active[0] = kExperts; }},
      {kLinearFew, "group_past_the_rows", group_past_the_rows},
      {kLinearFew, "group_backwards", group_backwards},
      {kLinearFew, "x_row_below", x_row_below},
      {kLinearFew, "x_row_above", x_row_above},
      {kLinearMany, "tile_of_no_group", tile_of_no_group},
      {kLinearMany, "tile_before_its_group", tile_before_its_group},
      {kLinearMany, "x_row_above", x_row_above},
      {kLinearWgmma, "tile_of_no_group", tile_of_no_group},
      {kLinearWgmma, "tile_before_its_group", tile_before_its_group},
      {kLinearWgmma, "x_row_above", x_row_above},
      {kGateUp, "expert_above", [](Step& s) { s.records[1].x = kExperts; }},
      {kGateUp, "group_past_the_rows", [](Step& s) { s.records[2].z = s.T * kPicks + 1; }},
      {kGateUp, "x_row_above", x_row_above},
      {kDown, "expert_below", [](Step& s) { s.records[1].x = -1; }},
      {kDown, "group_before_the_rows", [](Step& s) { s.records[0].y = -1; }},
      {kDown, "place_above", place_above},
      {kRowIds, "token_below", [](Step& s) { s.token_ids[2] = -1; }},
      {kRowIds, "history_below", [](Step& s) { s.slot_fill = std::byte{0xff}; }},
      {kRowIds, "sequence_above", sequence_above},
      {kRowIds, "slot_above", slot_above},
      {kGather, "table_row_below", [](Step& s) { s.table_rows[3] = -1; }},
      {kGather, "table_row_above", [](Step& s) { s.table_rows[3] = 10; }},
      {kConvolve, "sequence_above", sequence_above},
      {kConvolve, "slot_above", slot_above},
      {kHistory, "slot_below", slot_below},
      {kHistory, "save_slot_above", save_above},
  };
}

std::vector<Case> valid_cases() {
  const auto nothing = [](Step&) {};
  // A sequence whose state is still empty: its first row has no history, no window, no block, itself alone to attend to.
  const auto empty_prefix = [](Step& s) {
    s.start[1] = 0, s.position[s.T - 2] = 0, s.position[s.T - 1] = 1;
    s.counts[s.T - 2] = 1, s.counts[s.T - 1] = 2;
    for (int n = 0; n < 12; ++n) s.attended[(s.T - 2) * 12 + n] = 0, s.attended[(s.T - 1) * 12 + n] = n % 2;
  };
  std::vector<Case> cases;
  for (const Kernel& kernel :
       {kEmbed,      kTakeRows,        kWiden,  kLengths,    kConv,   kConvAny,    kMoveWindow, kRecurrence, kGdnStep, kPrepare,
        kScores,     kScoresPublished, kSelect, kSelectMany, kAttend, kAttendMany, kGroup,      kCombine,    kFinish,  kLinearFew,
        kLinearMany, kLinearWgmma,     kGateUp, kDown,       kRowIds, kGather,     kConvolve,   kHistory,    kSample})
    cases.push_back({kernel, "nothing", nothing});
  for (const Kernel& kernel : {kLengths, kConv, kMoveWindow, kRecurrence, kGdnStep, kPrepare, kScores, kScoresPublished, kSelect, kAttend,
                               kAttendMany, kRowIds, kConvolve, kHistory})
    cases.push_back({kernel, "nothing_of_an_empty_prefix", empty_prefix});
  return cases;
}

// In the child: how the device took it, as exit code and message.
[[noreturn]] void run_case(const Case& c) {
  int outcome = kFinished;
  std::string message = "the kernel finished";
  try {
    Step step(c.kernel.rows);
    c.break_it(step);
    cudaError_t code = cudaSuccess;
    try {
      c.kernel.run(step);
      code = cudaStreamSynchronize(step.stream.get());
    } catch (const CudaError&) {  // a launch that waits by itself
      code = cudaStreamSynchronize(step.stream.get());
      if (code == cudaSuccess) throw;
    }
    if (code == cudaErrorLaunchFailure || code == cudaErrorIllegalInstruction)
      outcome = kTrapped, message = "trapped on the device";
    else if (code != cudaSuccess)
      outcome = kOtherError, message = fmt::format("{} is no trap: {}", cudaGetErrorName(code), cudaGetErrorString(code));
    std::fprintf(stderr, "%s with %s broken: %s\n", c.kernel.name, c.broken, message.c_str());
    std::fflush(stderr);
    std::_Exit(outcome);  // what is on the device cannot be given back any more
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s with %s broken: refused on the host: %s\n", c.kernel.name, c.broken, error.what());
    std::fflush(stderr);
    std::_Exit(kRefused);
  }
}

std::string case_name(const ::testing::TestParamInfo<Case>& info) {
  return fmt::format("{}_with_{}_broken", info.param.kernel.name, info.param.broken);
}

class IndexDeathTest : public ::testing::TestWithParam<Case> {
 protected:
  // The child starts anew: a process that has used the device cannot be forked.
  IndexDeathTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_P(IndexDeathTest, traps_on_the_device) {
  EXPECT_EXIT(run_case(GetParam()), ::testing::ExitedWithCode(kTrapped), "trapped on the device");
}

class ValidIndexDeathTest : public IndexDeathTest {};

TEST_P(ValidIndexDeathTest, finishes) { EXPECT_EXIT(run_case(GetParam()), ::testing::ExitedWithCode(kFinished), "the kernel finished"); }

INSTANTIATE_TEST_SUITE_P(kernels, IndexDeathTest, ::testing::ValuesIn(broken_cases()), case_name);
INSTANTIATE_TEST_SUITE_P(kernels, ValidIndexDeathTest, ::testing::ValuesIn(valid_cases()), case_name);

}  // namespace
}  // namespace tetrad::cuda
