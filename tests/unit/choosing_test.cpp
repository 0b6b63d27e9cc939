// Tokens chosen by the backend from rows that stay there, against tokens chosen on the host: the same answers and the same errors.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "engine/engine_core.h"
#include "engine/generator.h"
#include "support/engine_rig.h"

namespace tetrad::choosing_test {
namespace {

using testing::hashed_script;
using testing::RecordingSink;
using testing::ScriptedBackend;

constexpr int kChoosingVocab = 96, kEnd = 95;

EngineRequest plain_request(std::vector<int> prompt, int max_tokens) {
  EngineRequest request;
  request.generation.prompt_ids = std::move(prompt);
  request.generation.sampling.seed = 7;
  request.generation.stop_ids = {kEnd};
  request.generation.max_tokens = max_tokens;
  return request;
}

// One of each kind: filters, penalties, biases, masks, forced tokens, choices, log probabilities, scores of the prompt.
std::vector<EngineRequest> requests_of_every_kind() {
  std::vector<EngineRequest> all;
  const auto add = [&](auto change) {
    const int i = static_cast<int>(all.size());
    all.push_back(plain_request({1 + i, 2, 3 + i, 5}, 12));
    change(all.back());
  };
  add([](EngineRequest& r) { r.generation.sampling.temperature = 0; });
  add([](EngineRequest&) {});
  add([](EngineRequest& r) { r.generation.sampling.top_k = 5, r.generation.sampling.top_p = 0.9; });
  add([](EngineRequest& r) { r.generation.sampling.min_p = 0.2, r.generation.sampling.temperature = 2.5; });
  add([](EngineRequest& r) {
    SamplingParams& s = r.generation.sampling;
    s.repetition_penalty = 1.3, s.presence_penalty = 0.5, s.frequency_penalty = 0.25, s.logit_bias = {{4, 3.0}, {3, -2.0}};
  });
  add([](EngineRequest& r) { r.num_choices = 3; });
  add([](EngineRequest& r) { r.generation.sampling.logprobs = 2; });
  add([](EngineRequest& r) { r.generation.prompt_logprobs = 1; });
  add([](EngineRequest& r) { r.generation.min_tokens = 6; });
  add([](EngineRequest& r) {
    r.generation.constraints = {std::make_shared<FixedChoice>(std::vector<std::vector<int>>{{10, 11, 12}, {10, 11, 13, 14}, {20, 21}})};
  });
  add([](EngineRequest& r) {
    r.num_choices = 2;
    r.generation.constraints = {std::make_shared<ThinkingBudget>(ThinkingBudget::Options{1, 2, true, 3, {30, 2, 31}})};
  });
  return all;
}

std::vector<std::shared_ptr<RecordingSink>> answers_of(ScriptedBackend& backend, const std::vector<EngineRequest>& requests) {
  StatePool pool(backend);
  EngineCore core(pool, nullptr, {.max_prefill_rows = 8});
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    sinks.push_back(std::make_shared<RecordingSink>(requests[i].num_choices));
    core.add(i + 1, requests[i], sinks.back(), EngineCore::Clock::now());
    if (i % 3 == 2) core.step();
  }
  for (int i = 0; i < 2000 && !core.idle(); ++i) core.step();
  EXPECT_TRUE(core.idle());
  return sinks;
}

void expect_equal_answers(const RecordingSink& got, const RecordingSink& expected, const std::string& what) {
  ASSERT_EQ(got.failed.has_value(), expected.failed.has_value()) << what;
  if (got.failed) {
    EXPECT_EQ(got.failed->message, expected.failed->message) << what;
    EXPECT_EQ(got.failed->kind, expected.failed->kind) << what;
  }
  for (std::size_t c = 0; c < got.choices.size(); ++c) {
    EXPECT_EQ(got.choices[c].ids, expected.choices[c].ids) << what << ", choice " << c;
    EXPECT_EQ(got.choices[c].finish, expected.choices[c].finish) << what << ", choice " << c;
    ASSERT_EQ(got.choices[c].tokens.size(), expected.choices[c].tokens.size());
    for (std::size_t t = 0; t < got.choices[c].tokens.size(); ++t) {
      const SampledToken &a = got.choices[c].tokens[t], &b = expected.choices[c].tokens[t];
      ASSERT_EQ(a.logprob.has_value(), b.logprob.has_value());
      if (a.logprob) {
        EXPECT_EQ(a.logprob->logprob, b.logprob->logprob);
      }
      EXPECT_EQ(a.top.size(), b.top.size());
    }
  }
  EXPECT_EQ(got.prompt_scores.size(), expected.prompt_scores.size()) << what;
}

TEST(choosing, a_backend_that_chooses_gives_the_answers_of_the_host) {
  const std::vector<EngineRequest> requests = requests_of_every_kind();
  ScriptedBackend host({.vocab_size = kChoosingVocab, .num_slots = 24, .max_rows = 64, .kept_rows = 0}, hashed_script(kEnd));
  const auto expected = answers_of(host, requests);
  EXPECT_EQ(host.choose_calls, 0);
  for (const int kept_rows : {1, 4, 64}) {
    ScriptedBackend backend({.vocab_size = kChoosingVocab, .num_slots = 24, .max_rows = 64, .kept_rows = kept_rows}, hashed_script(kEnd));
    const auto got = answers_of(backend, requests);
    for (std::size_t i = 0; i < got.size(); ++i)
      expect_equal_answers(*got[i], *expected[i], "request " + std::to_string(i) + ", " + std::to_string(kept_rows) + " rows kept");
    EXPECT_EQ(backend.steps, host.steps);
    EXPECT_LE(backend.choose_calls, backend.steps);
    EXPECT_GT(backend.choose_calls, 0);
  }
}

TEST(choosing, one_call_a_step_and_no_row_read_but_for_log_probabilities) {
  std::vector<EngineRequest> requests;
  for (int i = 0; i < 6; ++i) requests.push_back(plain_request({1 + i, 2}, 9)), requests.back().generation.stop_ids = {};
  ScriptedBackend backend({.vocab_size = kChoosingVocab, .num_slots = 8, .max_rows = 64, .kept_rows = 8}, hashed_script(kEnd));
  answers_of(backend, requests);
  EXPECT_EQ(backend.tokens_chosen, 6 * 9);
  EXPECT_EQ(backend.choose_calls, backend.steps);
  EXPECT_EQ(backend.rows_read, 0);

  requests.push_back(requests[0]);
  requests.back().generation.sampling.logprobs = 1;
  ScriptedBackend mixed({.vocab_size = kChoosingVocab, .num_slots = 8, .max_rows = 64, .kept_rows = 8}, hashed_script(kEnd));
  answers_of(mixed, requests);
  EXPECT_EQ(mixed.tokens_chosen, 6 * 9);
  EXPECT_GT(mixed.rows_read, 0);
  EXPECT_LE(mixed.rows_read, 9) << "the one request's own";
}

// Each in a batch of sound requests, which go on.
TEST(choosing, errors_are_those_of_the_host) {
  const auto hashed = hashed_script(kEnd);
  const auto script = [&](std::span<const int> history, std::span<float> logits) {
    hashed(history, logits);
    const auto spoil = [&](int id, float value) {
      if (history.size() > 5) logits[static_cast<std::size_t>(id)] = value;
    };
    if (history[0] == 80) spoil(17, -std::numeric_limits<float>::quiet_NaN());
    if (history[0] == 81) spoil(18, std::numeric_limits<float>::infinity());
    if (history[0] == 82) std::fill(logits.begin(), logits.end(), -std::numeric_limits<float>::infinity());
    if (history[0] == 83 || history[0] == 84) spoil(19, 3e38f);
    if (history[0] == 85 && history.size() > 3) logits[41] = -std::numeric_limits<float>::infinity();
  };
  std::vector<EngineRequest> requests{plain_request({1, 2, 3}, 20)};
  for (int kind = 80; kind <= 86; ++kind) requests.push_back(plain_request({kind, 2, 3}, 20)), requests.back().generation.stop_ids = {};
  for (const std::size_t i : {std::size_t{4}, std::size_t{5}}) {  // 83 and 84: past the largest float, which greedy takes
    requests[i].generation.sampling.repetition_penalty = 0.01;
    requests[i].generation.sampling.logit_bias = {{19, 1.0}};
  }
  requests[4].generation.prompt_ids[1] = requests[5].generation.prompt_ids[1] = 19;
  requests[5].generation.sampling.temperature = 0;
  requests[6].generation.constraints = {std::make_shared<FixedChoice>(std::vector<std::vector<int>>{{40, 41}, {40, 41, 42}, {40, 41, 43}})};
  requests[7].num_choices = 2;
  requests[7].generation.constraints = {std::make_shared<FixedChoice>(std::vector<std::vector<int>>{{40, 41}, {42, 43}}),
                                        std::make_shared<FixedChoice>(std::vector<std::vector<int>>{{44, 41}, {45, 43}})};
  ScriptedBackend host({.vocab_size = kChoosingVocab, .num_slots = 16, .max_rows = 64, .kept_rows = 0}, script);
  ScriptedBackend backend({.vocab_size = kChoosingVocab, .num_slots = 16, .max_rows = 64, .kept_rows = 64}, script);
  const auto expected = answers_of(host, requests), got = answers_of(backend, requests);
  int failures = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    expect_equal_answers(*got[i], *expected[i], "request " + std::to_string(i));
    failures += got[i]->failed.has_value();
  }
  EXPECT_EQ(failures, 5);
  EXPECT_TRUE(got[0]->finished);
  ASSERT_TRUE(got[1]->failed && got[4]->failed && got[7]->failed);
  EXPECT_NE(got[1]->failed->message.find("at token id 17"), std::string::npos) << got[1]->failed->message;
  EXPECT_NE(got[4]->failed->message.find("to infinity"), std::string::npos) << got[4]->failed->message;
  EXPECT_NE(got[7]->failed->message.find("no token is allowed"), std::string::npos) << got[7]->failed->message;
}

TEST(choosing, a_call_that_fails_fails_its_requests_and_no_others) {
  class Refusing : public ScriptedBackend {
   public:
    using ScriptedBackend::ScriptedBackend;
    void choose(const ChoiceBatch&, std::span<ChosenToken>) override { fail<InternalError>("no"); }
  };
  Refusing backend({.vocab_size = kChoosingVocab, .num_slots = 8, .max_rows = 64}, hashed_script(kEnd));
  std::vector<EngineRequest> requests{plain_request({1, 2}, 4), plain_request({3, 4}, 4)};
  requests[1].generation.sampling.logprobs = 1;
  const auto got = answers_of(backend, requests);
  ASSERT_TRUE(got[0]->failed);
  EXPECT_EQ(got[0]->failed->kind, EngineErrorKind::kInternal);
  EXPECT_TRUE(got[1]->finished);
}

TEST(choosing, a_generator_alone_answers_as_on_the_host) {
  for (const EngineRequest& request : requests_of_every_kind()) {
    std::vector<std::vector<int>> answers;
    for (const int kept_rows : {0, 4}) {
      ScriptedBackend backend({.vocab_size = kChoosingVocab, .kept_rows = kept_rows}, hashed_script(kEnd));
      StatePool pool(backend);
      SequenceState state(pool);
      answers.push_back(Generator(pool).generate(state, request.generation).ids);
      EXPECT_EQ(backend.choose_calls > 0, kept_rows > 0 && !request.generation.sampling.logprobs);
    }
    EXPECT_EQ(answers[0], answers[1]);
  }
}

TEST(choosing, rows_for_the_host_and_rows_for_the_backend_share_a_step) {
  const auto telling = [](std::span<const int> history, std::span<float> logits) {
    logits[static_cast<std::size_t>(history.back() % 90)] = 5.0f;
    logits[91] = static_cast<float>(history.size());
    logits[91] -= 1000;
  };
  ScriptedBackend backend({.vocab_size = kChoosingVocab, .num_slots = 4, .max_rows = 16, .kept_rows = 6}, telling);
  StatePool pool(backend);
  Stepper stepper(pool);
  SequenceState a(pool), b(pool), c(pool);
  const std::vector<int> ids{11, 12, 13};
  const auto outcomes = stepper.run(std::vector<StepRequest>{{.state = &a, .token_ids = std::span(ids).first(2), .choose = true},
                                                             {.state = &b, .token_ids = ids, .logits = LogitsWanted::kAll},
                                                             {.state = &c, .token_ids = ids, .choose = true}});
  EXPECT_TRUE(outcomes[0].logits.empty() && outcomes[2].logits.empty());
  EXPECT_EQ(outcomes[0].kept_row, 0);
  EXPECT_EQ(outcomes[2].kept_row, 4);
  ASSERT_EQ(outcomes[1].logits.size(), 3u * kChoosingVocab);
  EXPECT_EQ(outcomes[1].logits[2 * kChoosingVocab + 91], -997.0f);
  const std::vector<TokenChoice> choices{{.row = 4}, {.row = 0}, {.row = 4}};
  const auto chosen = stepper.choose(SampleableIds::all(kChoosingVocab), choices);
  EXPECT_EQ(chosen[0].id, 13);
  EXPECT_EQ(chosen[1].id, 12);
  EXPECT_EQ(chosen[2].id, 13);
  const std::vector<TokenChoice> outside{{.row = 5}};
  EXPECT_THROW(stepper.choose(SampleableIds::all(kChoosingVocab), outside), InternalError);
}

}  // namespace
}  // namespace tetrad::choosing_test
