// One weight that is not a number: the requests it reaches fail with an error that says where, nothing else does.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include <fmt/format.h>

#include "engine/tap_store.h"
#include "io/safetensors.h"
#include "support/checkpoint_edit.h"
#include "support/loaded_model.h"

namespace tetrad::poison_test {
namespace {

namespace fs = std::filesystem;
using test::LoadedModel;

// Sets elements [first, first + count) of a bf16 tensor of the directory to NaN.
void poison(const fs::path& directory, const std::string& tensor, std::int64_t first, std::int64_t count = 1) {
  for (const auto& entry : fs::directory_iterator(directory)) {
    if (entry.path().extension() != ".safetensors" || !entry.path().filename().string().starts_with("model")) continue;
    std::streamoff offset = -1;
    {
      const SafetensorsFile file = SafetensorsFile::open(entry.path());
      const TensorInfo* info = file.find(tensor);
      if (info == nullptr) continue;
      ASSERT_EQ(info->dtype, DType::kBF16);
      ASSERT_LE(static_cast<std::uint64_t>(first + count) * 2, info->end - info->begin);
      offset = file.bytes(*info).data() - file.file().bytes().data() + 2 * first;
    }
    std::fstream stream(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    stream.seekp(offset);
    for (std::int64_t i = 0; i < count; ++i) stream.write("\xc0\x7f", 2);
    ASSERT_TRUE(stream.good());
    return;
  }
  FAIL() << "no tensor " << tensor;
}

// --- Through the Stepper, with rand-small ---

constexpr const char* kGolden = "rand-small";
const std::vector<int> kFirst{10, 11, 12, 13, 14, 15, 16}, kSecond{200, 201, 202, 203, 204};

struct Batch {
  std::vector<StepOutcome> outcomes;
  std::vector<std::vector<float>> logits;
  std::vector<int> lengths;
  std::vector<std::vector<std::pair<StateKind, std::uint64_t>>> checksums;
};

// Both sequences in one step.
Batch run(const fs::path& directory, TapSink* taps = nullptr) {
  LoadedModel m(directory, {.num_slots = 2, .max_tokens = 128, .max_rows = 32, .num_threads = 2});
  SequenceState a(*m.pool), b(*m.pool);
  Stepper stepper(*m.pool);
  Batch batch;
  batch.outcomes = stepper.run(std::vector<StepRequest>{{&a, kFirst, LogitsWanted::kAll}, {&b, kSecond, LogitsWanted::kAll}}, taps);
  for (const StepOutcome& o : batch.outcomes) batch.logits.emplace_back(o.logits.begin(), o.logits.end());
  for (const SequenceState* state : {&a, &b}) batch.lengths.push_back(state->length()), batch.checksums.push_back(state->checksums());
  return batch;
}

struct Clean {
  Clean() { batch = run(test::golden_directory(kGolden), &taps); }
  TapStore taps;
  Batch batch;
};
const Clean& clean() {
  static const Clean c;
  return c;
}

// The ids that some rows of the first sequence hold in a stage and no row of the second does.
std::vector<std::int64_t> only_in_first(int layer, const char* stage) {
  const std::vector<std::int64_t>& ids = clean().taps.ids.at({layer, stage});
  const auto split = ids.begin() + static_cast<std::ptrdiff_t>(ids.size() * kFirst.size() / (kFirst.size() + kSecond.size()));
  std::vector<std::int64_t> only;
  for (auto id = ids.begin(); id != split; ++id)
    if (std::find(split, ids.end(), *id) == ids.end()) only.push_back(*id);
  return only;
}

Batch run_poisoned(const std::string& tensor, std::int64_t first, std::int64_t count = 1) {
  const test::TempDir directory;
  test::copy_checkpoint(test::golden_directory(kGolden), directory.path());
  poison(directory.path(), tensor, first, count);
  return run(directory.path());
}

void expect_fault(const Batch& batch, std::size_t sequence, int layer, const std::string& what) {
  ASSERT_TRUE(batch.outcomes[sequence].fault) << sequence;
  EXPECT_EQ(batch.outcomes[sequence].fault->layer, layer);
  EXPECT_EQ(batch.outcomes[sequence].fault->what, what);
  const int row = batch.outcomes[sequence].fault->row, first = sequence == 0 ? 0 : static_cast<int>(kFirst.size());
  EXPECT_GE(row, first);
  EXPECT_LT(row, first + static_cast<int>(sequence == 0 ? kFirst.size() : kSecond.size()));
  EXPECT_EQ(batch.lengths[sequence], 0) << "a state that holds NaNs is dropped";
}

void expect_untouched(const Batch& batch, std::size_t sequence) {
  EXPECT_FALSE(batch.outcomes[sequence].fault) << sequence;
  const std::vector<float>&got = batch.logits[sequence], &expected = clean().batch.logits[sequence];
  ASSERT_EQ(got.size(), expected.size());
  EXPECT_EQ(0, std::memcmp(got.data(), expected.data(), got.size() * sizeof(float))) << "logits of sequence " << sequence;
  EXPECT_EQ(batch.lengths[sequence], clean().batch.lengths[sequence]);
  EXPECT_EQ(batch.checksums[sequence], clean().batch.checksums[sequence]) << "state of sequence " << sequence;
}

TEST(poison, weights_that_every_token_meets) {
  struct Case {
    const char* tensor;
    std::int64_t element;
    int layer;
    const char* what;
  };
  const std::string layers = "model.layers.";
  for (const Case& c : {Case{"4.mlp.gate.weight", 3 * 64 + 5, 4, "router logits"},
                        {"2.self_attn.k_proj.weight", 7, 2, "router logits"},
                        {"0.linear_attn.A_log", 1, 0, "router logits"},
                        {"5.mlp.shared_expert.up_proj.weight", 9, -1, "logits"}}) {
    const Batch batch = run_poisoned(layers + c.tensor, c.element);
    for (const std::size_t sequence : {0u, 1u}) expect_fault(batch, sequence, c.layer, c.what);
  }
  const Batch head = run_poisoned("lm_head.weight", 17 * 64);
  for (const std::size_t sequence : {0u, 1u}) expect_fault(head, sequence, -1, "logits");
}

TEST(poison, an_expert_fails_the_sequence_that_picks_it) {
  for (const int layer : {2, 5}) {  // of the last layer only the logits can tell
    const auto experts = only_in_first(layer, "moe.experts");
    ASSERT_FALSE(experts.empty()) << "choose other prompts";
    const Batch batch = run_poisoned(fmt::format("model.layers.{}.mlp.experts.{}.down_proj.weight", layer, experts[0]), 100);
    expect_fault(batch, 0, layer == 5 ? -1 : layer + 1, layer == 5 ? "logits" : "router logits");
    expect_untouched(batch, 1);
  }
}

TEST(poison, a_table_row_fails_the_sequence_that_reads_it) {
  const auto rows = only_in_first(1, "ple.rows");
  ASSERT_FALSE(rows.empty());
  const LoadedModel m(test::golden_directory(kGolden));
  const NgramTable& table = m.weights.layers[1].ple->table;
  std::size_t shard = 0;
  while (table.first_row[shard + 1] <= rows[0]) ++shard;
  const Batch batch = run_poisoned(table.shards[shard].name, (rows[0] - table.first_row[shard]) * m.config.ngram_row_dim());
  expect_fault(batch, 0, 1, "router logits");
  expect_untouched(batch, 1);
}

TEST(poison, a_token_embedding_fails_the_sequence_that_holds_it) {
  const Batch batch = run_poisoned("model.embed_tokens.weight", kFirst[3] * 64 + 1);
  expect_fault(batch, 0, 0, "router logits");
  EXPECT_EQ(batch.outcomes[0].fault->row, 3);
  expect_untouched(batch, 1);
}

// Past the budget: the index key chooses which tokens are attended, and nothing that is not a number comes out of that.
TEST(poison, an_index_key_fails_the_sequence_once_it_is_scored) {
  const test::TempDir directory;
  test::copy_checkpoint(test::golden_directory(kGolden), directory.path());
  poison(directory.path(), "model.layers.2.self_attn.indexer.index_qk_proj.weight", 2 * 32 * 64 + 3);  // after two query heads
  LoadedModel m(directory.path(), {.num_slots = 2, .max_tokens = 128, .max_rows = 64, .num_threads = 2});
  SequenceState brief(*m.pool), lengthy(*m.pool);
  Stepper stepper(*m.pool);
  const std::vector<int> few = test::random_ids(m.config.index_budget + m.config.compress_ratio - 1, m.config.vocab_size, 1),
                         many = test::random_ids(30, m.config.vocab_size, 2);
  const auto outcomes = stepper.run(std::vector<StepRequest>{{&brief, few}, {&lengthy, many}});
  EXPECT_FALSE(outcomes[0].fault) << "within the budget nothing is scored";
  ASSERT_TRUE(outcomes[1].fault);
  EXPECT_EQ(outcomes[1].fault->layer, 2);
  EXPECT_EQ(outcomes[1].fault->what, "index scores");
  EXPECT_EQ(outcomes[1].fault->row, static_cast<int>(few.size()) + m.config.index_budget + m.config.compress_ratio - 1);
}

#if !defined(TETRAD_TEST_ON_GPU)  // the binary takes the same way on every device

// --- Through the binary, with the built-in model ---

struct Outcome {
  int exit_code;
  std::string out, error;
};

Outcome tetrad_run(const test::TempDir& directory, const std::string& arguments) {
  const fs::path out = directory / "stdout.txt", error = directory / "stderr.txt";
  const int status = std::system(fmt::format("'{}' run -m '{}' {} >'{}' 2>'{}' </dev/null", TETRAD_BINARY, directory.path().string(),
                                             arguments, out.string(), error.string())
                                     .c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, test::read_bytes(out), test::read_bytes(error)};
}

const std::string kModel = TETRAD_MODELS "/tetrad-tiny";
const std::vector<int> kPrompt{100, 200, 300, 400, 500};
constexpr const char* kArguments = "--ids 100,200,300,400,500 -n 4 --temp 0";

// Experts and table rows that the prompt meets, from the model itself.
std::int64_t met(int layer, const char* stage) {
  LoadedModel m(kModel, {.num_slots = 1, .max_tokens = 128, .max_rows = 32, .num_threads = 2});
  SequenceState state(*m.pool);
  TapStore taps;
  Stepper(*m.pool).run(std::vector<StepRequest>{{&state, kPrompt}}, &taps);
  return taps.ids.at({layer, stage}).front();
}

TEST(poison, the_binary_fails_without_text) {
  const std::string layers = "model.language_model.layers.";
  const std::int64_t row = met(1, "ple.rows"), shard = row / 8256;
  struct Case {
    std::string tensor;
    std::int64_t element;
    std::string says;
  };
  for (const Case& c : {Case{layers + "2.mlp.gate.weight", 0, "layer 2: router logits of row 0"},
                        {"lm_head.weight", 9 * 256, "logits of row"},
                        {layers + "1.mlp.experts.down_proj", met(1, "moe.experts") * 256 * 128, "layer 2: router logits of row"},
                        {layers + "3.self_attn.k_proj.weight", 5, "layer 3: router logits of row 0"},
                        {fmt::format("{}1.ple.ple_embedding.ngram_embedding.shard_{}.weight", layers, shard), row % 8256 * 16,
                         "layer 1: router logits of row"}}) {
    const test::TempDir directory;
    test::copy_checkpoint(kModel, directory.path());
    poison(directory.path(), c.tensor, c.element);
    const Outcome outcome = tetrad_run(directory, kArguments);
    EXPECT_EQ(outcome.exit_code, 1) << c.tensor;
    EXPECT_EQ(outcome.out, "") << c.tensor;
    EXPECT_NE(outcome.error.find(c.says), std::string::npos) << c.tensor << "\nexpected: " << c.says << "\ngot: " << outcome.error;
    EXPECT_NE(outcome.error.find("not finite"), std::string::npos) << outcome.error;
  }
}

TEST(poison, the_binary_answers_when_nothing_is_poisoned) {
  const test::TempDir directory;
  test::copy_checkpoint(kModel, directory.path());
  const Outcome outcome = tetrad_run(directory, kArguments);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.error;
  EXPECT_FALSE(outcome.out.empty());
}

#endif

}  // namespace
}  // namespace tetrad::poison_test
