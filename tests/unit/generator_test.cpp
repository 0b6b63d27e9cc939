#include "engine/generator.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/error.h"
#include "engine/conversation_state.h"
#include "support/scripted_backend.h"

namespace tetrad::generator_test {
namespace {

using testing::answer_script;
using testing::ScriptedBackend;

constexpr int kImEnd = 4034, kEndOfText = 4032;

const Tokenizer& tokenizer() {
  static const Tokenizer loaded = Tokenizer::load(TETRAD_MODELS "/tetrad-tiny/tokenizer.json");
  return loaded;
}

int token_of(std::string_view bytes) {
  for (int id = 0; id < tokenizer().size(); ++id)
    if (tokenizer().token_bytes(id) == bytes) return id;
  ADD_FAILURE() << "no token for " << bytes;
  return 0;
}

std::vector<int> bytes_of(std::string_view text) {
  std::vector<int> ids;
  for (const char byte : text) ids.push_back(token_of({&byte, 1}));
  return ids;
}

GenerationRequest greedy_request(std::vector<int> prompt) {
  GenerationRequest request;
  request.prompt_ids = std::move(prompt);
  request.sampling.temperature = 0;
  request.stop_ids = {kImEnd, kEndOfText};
  return request;
}

struct Rig {
  explicit Rig(ScriptedBackend::Script script, ScriptedBackend::Sizes sizes = {})
      : backend(sizes, std::move(script)), pool(backend), generator(pool, tokenizer()), state(pool) {}
  ScriptedBackend backend;
  StatePool pool;
  Generator generator;
  SequenceState state;
};

TEST(generator, answers_until_a_stop_id) {
  std::vector<int> answer = bytes_of("hello");
  answer.push_back(kImEnd);
  Rig rig(answer_script(3, answer, kEndOfText));
  std::string streamed;
  std::vector<int> ids;
  const GenerationResult result = rig.generator.generate(rig.state, greedy_request({1, 2, 3}), [&](const GeneratedToken& token) {
    streamed += token.text;
    ids.push_back(token.sampled.id);
    return true;
  });
  EXPECT_EQ(result.ids, answer);
  EXPECT_EQ(ids, answer);
  EXPECT_EQ(result.text, "hello");
  EXPECT_EQ(streamed, "hello");
  EXPECT_EQ(result.finish, FinishReason::kStop);
  EXPECT_EQ(rig.state.length(), 3 + 5) << "the stop token is not fed";
  EXPECT_EQ(result.timings.prefill_tokens, 3);
  EXPECT_EQ(result.timings.decode_steps, 5);
  EXPECT_TRUE(result.tokens.empty());
}

TEST(generator, every_stop_id_stops) {
  Rig rig(answer_script(1, {token_of("a")}, kEndOfText));
  EXPECT_EQ(rig.generator.generate(rig.state, greedy_request({1})).ids, (std::vector<int>{token_of("a"), kEndOfText}));
}

TEST(generator, special_tokens_are_kept_on_demand) {
  Rig rig(answer_script(1, {token_of("a"), kImEnd}, kEndOfText));
  GenerationRequest request = greedy_request({1});
  request.skip_special = false;
  EXPECT_EQ(rig.generator.generate(rig.state, request).text, "a<|im_end|>");
}

TEST(generator, max_tokens_and_context_end_an_answer) {
  Rig rig(answer_script(4, {}, token_of("a")), {.max_positions = 20});
  GenerationRequest request = greedy_request({1, 2, 3, 4});
  request.max_tokens = 5;
  GenerationResult result = rig.generator.generate(rig.state, request);
  EXPECT_EQ(result.text, "aaaaa");
  EXPECT_EQ(result.finish, FinishReason::kLength);

  rig.state.clear();
  request.max_tokens = 0;
  result = rig.generator.generate(rig.state, request);
  EXPECT_EQ(result.ids.size(), 16u);
  EXPECT_EQ(result.finish, FinishReason::kContext);

  rig.state.clear();
  request.max_length = 6;
  result = rig.generator.generate(rig.state, request);
  EXPECT_EQ(result.ids.size(), 2u);
  EXPECT_EQ(result.finish, FinishReason::kContext);
}

TEST(generator, text_waits_for_whole_code_points) {
  std::vector<int> answer = bytes_of("x\xE2\x82\xAC");
  answer.push_back(kImEnd);
  Rig rig(answer_script(1, answer, kImEnd));
  std::vector<std::string> pieces;
  const auto result = rig.generator.generate(rig.state, greedy_request({1}), [&](const GeneratedToken& token) {
    pieces.emplace_back(token.text);
    return true;
  });
  EXPECT_EQ(pieces, (std::vector<std::string>{"x", "", "", "\xE2\x82\xAC", ""}));
  EXPECT_EQ(result.text, "x\xE2\x82\xAC");
}

TEST(generator, an_incomplete_code_point_at_the_end_is_replaced) {
  std::vector<int> answer = bytes_of("x\xE2\x82");
  answer.push_back(kImEnd);
  Rig rig(answer_script(1, answer, kImEnd));
  EXPECT_EQ(rig.generator.generate(rig.state, greedy_request({1})).text, "x\xEF\xBF\xBD");
}

TEST(generator, stop_strings_across_tokens) {
  Rig rig(answer_script(1, bytes_of("one END two"), kImEnd));
  GenerationRequest request = greedy_request({1});
  request.stop_strings = {"END"};
  std::string streamed;
  GenerationResult result = rig.generator.generate(rig.state, request, [&](const GeneratedToken& token) {
    streamed += token.text;
    EXPECT_EQ(streamed.find('E'), std::string::npos);
    return true;
  });
  EXPECT_EQ(result.text, "one ");
  EXPECT_EQ(streamed, "one ");
  EXPECT_EQ(result.finish, FinishReason::kStop);
  EXPECT_EQ(result.ids.size(), 7u);

  rig.state.clear();
  request.include_stop = true;
  EXPECT_EQ(rig.generator.generate(rig.state, request).text, "one END");
}

TEST(generator, text_held_back_for_a_stop_string_comes_at_the_end) {
  Rig rig(answer_script(1, bytes_of("xEN"), kImEnd));
  GenerationRequest request = greedy_request({1});
  request.stop_strings = {"END"};
  std::string streamed;
  const GenerationResult result = rig.generator.generate(rig.state, request, [&](const GeneratedToken& token) {
    streamed += token.text;
    return true;
  });
  EXPECT_EQ(streamed, "xEN");
  EXPECT_EQ(result.text, "xEN");
}

TEST(generator, the_callback_cancels) {
  Rig rig(answer_script(2, {}, token_of("a")));
  int calls = 0;
  const GenerationResult result =
      rig.generator.generate(rig.state, greedy_request({1, 2}), [&](const GeneratedToken&) { return ++calls < 3; });
  EXPECT_EQ(result.finish, FinishReason::kCancelled);
  EXPECT_EQ(result.text, "aaa");
  EXPECT_EQ(rig.state.length(), 4);
}

TEST(generator, a_long_prompt_is_fed_in_chunks_and_can_be_left) {
  Rig rig(answer_script(50, {}, kImEnd), {.max_rows = 16});
  GenerationResult result = rig.generator.generate(rig.state, greedy_request(std::vector<int>(50, 1)));
  EXPECT_EQ(rig.backend.steps, 4);
  EXPECT_EQ(result.finish, FinishReason::kStop);

  rig.state.clear();
  int asked = 0;
  result = rig.generator.generate(rig.state, greedy_request(std::vector<int>(50, 1)), {}, [&] { return ++asked > 2; });
  EXPECT_EQ(result.finish, FinishReason::kCancelled);
  EXPECT_TRUE(result.ids.empty());
  EXPECT_EQ(rig.state.length(), 32);
}

TEST(generator, only_what_the_state_lacks_is_computed) {
  Rig rig(answer_script(10, {}, kImEnd));
  ASSERT_TRUE(rig.generator.prefill(rig.state, std::vector<int>(6, 1)));
  rig.backend.rows_computed = 0;
  const GenerationResult result = rig.generator.generate(rig.state, greedy_request(std::vector<int>(10, 1)));
  EXPECT_EQ(rig.backend.rows_computed, 4);
  EXPECT_EQ(result.timings.cached_tokens, 6);
  EXPECT_EQ(result.timings.prefill_tokens, 4);
}

TEST(generator, a_fault_names_layer_and_row_and_clears_the_state) {
  Rig rig(answer_script(3, {}, token_of("a")));
  rig.backend.fault_at = 4;
  try {
    rig.generator.generate(rig.state, greedy_request({1, 2, 3}));
    FAIL() << "went on after a fault";
  } catch (const NumericError& error) {
    EXPECT_NE(std::string(error.what()).find("layer 2: router logits of row 0"), std::string::npos) << error.what();
  }
  EXPECT_EQ(rig.state.length(), 0);
  EXPECT_EQ(rig.pool.free_pages(), rig.backend.num_pages());
  rig.backend.fault_at = -1;
  GenerationRequest request = greedy_request({1, 2, 3});
  request.max_tokens = 2;
  EXPECT_EQ(rig.generator.generate(rig.state, request).text, "aa") << "the state is usable again";
}

TEST(generator, logits_that_are_not_finite_never_become_text) {
  Rig rig([](std::span<const int> history, std::span<float> logits) {
    logits[static_cast<std::size_t>(token_of("a"))] = history.size() < 5 ? 1.0f : std::numeric_limits<float>::quiet_NaN();
  });
  std::string streamed;
  EXPECT_THROW(rig.generator.generate(rig.state, greedy_request({1, 2, 3}),
                                      [&](const GeneratedToken& token) {
                                        streamed += token.text;
                                        return true;
                                      }),
               NumericError);
  EXPECT_EQ(streamed, "aa");
  EXPECT_EQ(rig.state.length(), 0);
}

TEST(generator, bad_requests_are_refused_before_anything_is_computed) {
  Rig rig(answer_script(1, {}, kImEnd), {.max_positions = 16});
  EXPECT_THROW(rig.generator.generate(rig.state, greedy_request({})), InputError);
  EXPECT_THROW(rig.generator.generate(rig.state, greedy_request({1, -1})), InputError);
  EXPECT_THROW(rig.generator.generate(rig.state, greedy_request({1, 4096})), InputError);
  EXPECT_THROW(rig.generator.generate(rig.state, greedy_request(std::vector<int>(16, 1))), InputError);
  GenerationRequest request = greedy_request({1});
  request.max_tokens = -1;
  EXPECT_THROW(rig.generator.generate(rig.state, request), InputError);
  request = greedy_request({1});
  request.sampling.top_p = 0;
  EXPECT_THROW(rig.generator.generate(rig.state, request), InputError);
  request = greedy_request({1});
  request.stop_strings = {""};
  EXPECT_THROW(rig.generator.generate(rig.state, request), InputError);
  EXPECT_EQ(rig.backend.steps, 0);
  EXPECT_EQ(rig.generator.generate(rig.state, greedy_request(std::vector<int>(15, 1))).ids.size(), 1u) << "one below the limit is fine";
}

TEST(generator, logprobs_come_one_per_token) {
  Rig rig(answer_script(1, bytes_of("ab"), kImEnd));
  GenerationRequest request = greedy_request({1});
  request.sampling.logprobs = 2;
  const GenerationResult result = rig.generator.generate(rig.state, request);
  ASSERT_EQ(result.tokens.size(), 3u);
  const double expected = 10 - std::log(std::exp(10.0) + 4095);
  for (const SampledToken& token : result.tokens) {
    EXPECT_NEAR(token.logprob->logprob, expected, 1e-5);
    EXPECT_EQ(token.top.size(), 2u);
    EXPECT_EQ(token.top[0].id, token.id);
  }
}

TEST(generator, penalties_see_the_answer_so_far) {
  const int a = token_of("a"), b = token_of("b");
  Rig rig([&](std::span<const int>, std::span<float> logits) {
    logits[static_cast<std::size_t>(a)] = 2;
    logits[static_cast<std::size_t>(b)] = 1.5f;
  });
  GenerationRequest request = greedy_request({1});
  request.sampling.presence_penalty = 1;
  request.max_tokens = 3;
  EXPECT_EQ(rig.generator.generate(rig.state, request).text, "aba");
}

TEST(conversation_state, a_prompt_that_extends_the_state_is_not_computed_again) {
  Rig rig(answer_script(4, bytes_of("xy"), kImEnd));
  ConversationState conversation(rig.pool);
  GenerationRequest request = greedy_request({1, 2, 3, 4});
  EXPECT_EQ(conversation.align(request.prompt_ids), 0);
  const GenerationResult result = rig.generator.generate(conversation.state(), request);
  std::vector<int> tokens = request.prompt_ids;
  tokens.insert(tokens.end(), result.ids.begin(), result.ids.end());
  conversation.record(tokens);
  EXPECT_EQ(conversation.align(tokens), 6) << "all but the last token, which was never fed";
  tokens.push_back(9);
  EXPECT_EQ(conversation.align(tokens), 6);
  EXPECT_EQ(conversation.align({tokens.data(), 6}), 0) << "the same tokens leave nothing to compute, so they are computed again";
}

TEST(conversation_state, a_prompt_that_departs_goes_back_to_the_save_point) {
  Rig rig(answer_script(20, {}, kImEnd));
  ConversationState conversation(rig.pool);
  const std::vector<int> first{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
  rig.generator.prefill(conversation.state(), {first.data(), 9});
  conversation.record({first.data(), 9});
  conversation.save();
  rig.generator.prefill(conversation.state(), std::span(first).subspan(9));
  conversation.record(first);
  const std::vector<int> departs{1, 2, 3, 4, 5, 6, 7, 8, 9, 77, 78, 79};
  for (int twice = 0; twice < 2; ++twice) {
    ASSERT_EQ(conversation.align(departs), 9);
    rig.generator.prefill(conversation.state(), std::span(departs).subspan(9));  // the backend checks lengths and pages
    conversation.record(departs);
  }
  EXPECT_EQ(conversation.align(std::vector<int>{1, 2, 5, 6}), 0);
  EXPECT_EQ(conversation.state().length(), 0);
  conversation.clear();
  EXPECT_EQ(rig.pool.free_pages(), rig.backend.num_pages());
}

TEST(conversation_state, a_state_cleared_by_a_fault_is_not_trusted) {
  Rig rig(answer_script(20, {}, kImEnd));
  ConversationState conversation(rig.pool);
  const std::vector<int> ids{1, 2, 3, 4};
  rig.generator.prefill(conversation.state(), ids);
  conversation.record(ids);
  conversation.state().clear();
  EXPECT_EQ(conversation.align(std::vector<int>{1, 2, 3, 4, 5}), 0);
}

}  // namespace
}  // namespace tetrad::generator_test
