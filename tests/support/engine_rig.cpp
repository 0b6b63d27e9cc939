#include "support/engine_rig.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <stdexcept>

namespace tetrad::testing {

ScriptedBackend::Script canned_script(CannedAnswers answers, int after) {
  return [=](std::span<const int> history, std::span<float> logits) {
    int token = after;
    for (const auto& [prompt, answer] : answers) {
      if (history.size() < prompt.size() || !std::equal(prompt.begin(), prompt.end(), history.begin())) continue;
      const std::size_t position = history.size() - prompt.size();
      if (position < answer.size()) token = answer[position];
    }
    logits[static_cast<std::size_t>(token)] = 10.0f;
  };
}

ScriptedBackend::Script hashed_script(int stop) {
  return [=](std::span<const int> history, std::span<float> logits) {
    std::uint64_t hash = 0x243f6a8885a308d3u;
    for (const int token : history) hash = (hash ^ static_cast<std::uint64_t>(token)) * 0x100000001b3u + (hash >> 29);
    std::uint64_t random = hash;
    for (float& logit : logits) {
      random = random * 6364136223846793005u + 1442695040888963407u;
      logit = static_cast<float>(random >> 40) / static_cast<float>(1 << 22);  // [0, 4)
    }
    logits[static_cast<std::size_t>(stop - 1)] = logits[static_cast<std::size_t>(stop - 2)] = -1.0e30f;
    if ((hash >> 20) % 24 == 0) logits[static_cast<std::size_t>(stop)] = 9.0f;
  };
}

bool RecordingSink::push(EngineEvent event) {
  EXPECT_EQ(terminals, 0) << "an event after the terminal one";
  const int index = events++;
  if (!is_terminal(event)) {
    if (index == throw_at) throw std::runtime_error("thrown by the sink");
    if (index == refuse_at) return false;
  }
  if (const auto* start = std::get_if<StartedEvent>(&event)) {
    EXPECT_FALSE(started) << "started twice";
    EXPECT_EQ(index, 0) << "the first event is the start";
    started = *start;
  } else if (auto* piece = std::get_if<PromptScoredEvent>(&event)) {
    EXPECT_TRUE(started);
    EXPECT_FALSE(scored) << "a piece after the last one";
    EXPECT_FALSE(piece->tokens.empty());
    EXPECT_EQ(piece->first, 1 + static_cast<int>(prompt_scores.size())) << "the pieces join";
    std::move(piece->tokens.begin(), piece->tokens.end(), std::back_inserter(prompt_scores));
    scored = piece->last;
    ++score_pieces;
  } else if (auto* token = std::get_if<TokenEvent>(&event)) {
    Answer& answer = choices.at(static_cast<std::size_t>(token->choice));
    EXPECT_TRUE(prompt_scores.empty() || scored) << "a token before all of the prompt is scored";
    EXPECT_TRUE(started);
    EXPECT_FALSE(answer.finish) << "a token after the end of choice " << token->choice;
    answer.ids.push_back(token->sampled.id);
    answer.text += token->text;
    answer.tokens.push_back(std::move(token->sampled));
  } else if (const auto* choice = std::get_if<ChoiceFinishedEvent>(&event)) {
    Answer& answer = choices.at(static_cast<std::size_t>(choice->choice));
    EXPECT_FALSE(answer.finish) << "choice " << choice->choice << " ended twice";
    EXPECT_EQ(choice->num_tokens, static_cast<int>(answer.ids.size()));
    answer.text += choice->text;
    answer.finish = choice->reason;
  } else {
    ++terminals;
    if (auto* end = std::get_if<FinishedEvent>(&event)) {
      finished = std::move(*end);
      EXPECT_EQ(finished->reasons.size(), choices.size());
      std::size_t tokens = 0;
      for (std::size_t i = 0; i < choices.size(); ++i) {
        EXPECT_EQ(choices[i].finish, finished->reasons[i]);
        tokens += choices[i].ids.size();
      }
      EXPECT_EQ(finished->usage.completion_tokens, static_cast<int>(tokens));
      EXPECT_LE(finished->usage.cached_tokens, finished->usage.prompt_tokens);
    } else {
      failed = std::move(std::get<FailedEvent>(event));
    }
  }
  return true;
}

RecordingSink recorded(EventBuffer& buffer, int num_choices) {
  RecordingSink sink(num_choices);
  while (auto event = buffer.pop(std::chrono::seconds(60))) sink.push(std::move(*event));
  EXPECT_TRUE(buffer.exhausted()) << "no event for a minute";
  return sink;
}

}  // namespace tetrad::testing
