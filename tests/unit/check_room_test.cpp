// Whether prompt and max_tokens fit the context together.
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "engine/engine_events.h"

namespace tetrad::check_room_test {
namespace {

std::string refusal(int prompt_tokens, int max_tokens, int max_length = 0, bool take_what_fits = false, bool prompt_only = false) {
  EngineRequest request;
  request.generation.prompt_ids.assign(static_cast<std::size_t>(prompt_tokens), 1);
  request.generation.max_tokens = max_tokens;
  request.generation.max_length = max_length;
  request.generation.prompt_only = prompt_only;
  request.take_what_fits = take_what_fits;
  try {
    check_room(request, 40);
  } catch (const EngineRefusal& error) {
    EXPECT_EQ(error.kind(), EngineErrorKind::kPromptTooLong);
    return error.what();
  }
  return "";
}

TEST(check_room, prompt_and_answer_fit_together) {
  EXPECT_EQ(refusal(30, 10), "");
  EXPECT_EQ(refusal(30, 11),
            "the prompt has 30 tokens and max_tokens is 11, together 41: the context holds 40; ask for 10 at most or shorten the prompt");
  EXPECT_EQ(refusal(39, 0), "") << "without a limit the answer ends with the context";
  EXPECT_EQ(refusal(40, 0, 0, false, true), "");
  EXPECT_EQ(refusal(40, 1), "the prompt has 40 tokens and max_tokens is 1, together 41: the context holds 40; shorten the prompt");
  EXPECT_NE(refusal(2, std::numeric_limits<int>::max()), "") << "the sum does not overflow";
}

TEST(check_room, the_request_may_bound_the_context_or_take_what_fits) {
  EXPECT_NE(refusal(10, 11, 20), "");
  EXPECT_EQ(refusal(10, 10, 20), "");
  EXPECT_NE(refusal(30, 11, 1000), "") << "a request cannot raise it";
  EXPECT_EQ(refusal(30, 1000, 0, true), "");
}

}  // namespace
}  // namespace tetrad::check_room_test
