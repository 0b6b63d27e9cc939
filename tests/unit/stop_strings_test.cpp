#include "engine/stop_strings.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace tetrad::stop_strings_test {
namespace {

struct Outcome {
  std::string text;
  bool stopped = false;
  friend bool operator==(const Outcome&, const Outcome&) = default;
};

Outcome feed_pieces(StopStrings& stops, const std::vector<std::string>& pieces) {
  Outcome outcome;
  for (const std::string& piece : pieces) {
    outcome.text += stops.feed(piece);
    if (stops.stopped()) break;
  }
  if (!stops.stopped()) outcome.text += stops.finish();
  outcome.stopped = stops.stopped();
  return outcome;
}

TEST(stop_strings, without_strings_text_passes_through) {
  StopStrings stops({});
  EXPECT_EQ(stops.feed("anything"), "anything");
  EXPECT_EQ(stops.finish(), "");
  EXPECT_FALSE(stops.stopped());
}

TEST(stop_strings, a_stop_string_is_found_however_the_text_is_cut) {
  const std::string text = "one two END three";
  for (std::size_t first = 0; first <= text.size(); ++first) {
    for (std::size_t second = first; second <= text.size(); ++second) {
      StopStrings stops({"END"});
      const Outcome outcome = feed_pieces(stops, {text.substr(0, first), text.substr(first, second - first), text.substr(second)});
      EXPECT_EQ(outcome, (Outcome{"one two ", true})) << first << " " << second;
      EXPECT_EQ(*stops.matched(), "END");
    }
  }
}

TEST(stop_strings, only_what_may_become_a_stop_is_held_back) {
  StopStrings stops({"\n\nUser:"});
  EXPECT_EQ(stops.feed("hello"), "hello");
  EXPECT_EQ(stops.feed("\n"), "");
  EXPECT_EQ(stops.feed("x\n\nUs"), "\nx");
  EXPECT_EQ(stops.feed("e"), "");
  EXPECT_EQ(stops.feed("d"), "\n\nUsed");
  EXPECT_EQ(stops.feed("\n\n"), "");
  EXPECT_EQ(stops.finish(), "\n\n");
  EXPECT_FALSE(stops.stopped());
}

TEST(stop_strings, a_prefix_that_repeats_itself_falls_back_to_its_border) {
  StopStrings stops({"aab"});
  EXPECT_EQ(feed_pieces(stops, {"a", "a", "a", "a", "b", "c"}), (Outcome{"aa", true}));
  StopStrings other({"abab!"});
  EXPECT_EQ(feed_pieces(other, {"aba", "bab", "ab", "!"}), (Outcome{"abab", true}));
}

TEST(stop_strings, the_first_to_end_wins_and_of_those_the_longest) {
  StopStrings overlap({"bcd", "abc"});
  EXPECT_EQ(feed_pieces(overlap, {"xabcd"}), (Outcome{"x", true}));
  EXPECT_EQ(*overlap.matched(), "abc");
  StopStrings suffix({"c", "abc"});
  EXPECT_EQ(feed_pieces(suffix, {"xabc"}), (Outcome{"x", true}));
  EXPECT_EQ(*suffix.matched(), "abc");
  StopStrings prefix({"abc", "a"});
  EXPECT_EQ(feed_pieces(prefix, {"xabc"}), (Outcome{"x", true}));
  EXPECT_EQ(*prefix.matched(), "a");
}

TEST(stop_strings, include_stop_keeps_the_string_and_drops_what_follows) {
  StopStrings stops({"</a>"}, true);
  EXPECT_EQ(feed_pieces(stops, {"x<", "/a>y"}), (Outcome{"x</a>", true}));
  EXPECT_EQ(stops.feed("more"), "");
  EXPECT_EQ(stops.finish(), "");
}

TEST(stop_strings, long_and_multibyte_strings) {
  const std::string long_stop(200, 'z');
  StopStrings stops({long_stop, "日本"});
  EXPECT_EQ(feed_pieces(stops, {"a" + std::string(150, 'z'), std::string(49, 'z'), "日", "x日", "本"}),
            (Outcome{"a" + std::string(199, 'z') + "日x", true}));
}

TEST(stop_strings, bad_strings_are_refused_by_name) {
  EXPECT_THROW(StopStrings({"ok", ""}), InputError);
  EXPECT_THROW(StopStrings({std::string(kMaxStopStringBytes + 1, 'a')}), InputError);
  EXPECT_THROW(StopStrings(std::vector<std::string>(kMaxStopStrings + 1, "a")), InputError);
  try {
    StopStrings({"ok", ""});
  } catch (const InputError& error) {
    EXPECT_NE(std::string(error.what()).find("stop[1]"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace tetrad::stop_strings_test
