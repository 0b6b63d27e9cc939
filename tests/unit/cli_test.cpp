// The built binary from outside: help, messages, exit codes, and answers held to the recorded ones.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "cli/chat_session.h"
#include "cli/options.h"
#include "cli/progress.h"
#include "cli/suggest.h"
#include "support/checkpoint_edit.h"
#include "support/command_line.h"

namespace tetrad::cli::cli_test {
namespace {

using test::count_of;
using test::expect_refused;
using test::Outcome;
using test::scratch;
using test::tetrad;

const std::string kModel = TETRAD_MODELS "/tetrad-tiny";

std::string read_file(const std::filesystem::path& path) { return test::read_bytes(path); }

TEST(cli, version_and_help) {
  const Outcome version = tetrad({"--version"});
  EXPECT_EQ(version.exit_code, 0);
  EXPECT_TRUE(version.out.starts_with("tetrad 0.")) << version.out;
  const Outcome help = tetrad({"--help"});
  EXPECT_EQ(help.exit_code, 0);
  for (const char* command : {"run", "chat", "serve", "inspect", "tokenize", "render", "logits", "verify", "synth", "bench", "reference"}) {
    EXPECT_NE(help.out.find(command), std::string::npos) << command;
    const Outcome command_help = tetrad({command, "--help"});
    EXPECT_EQ(command_help.exit_code, 0) << command;
    EXPECT_NE(command_help.out.find(fmt::format("tetrad {}", command)), std::string::npos) << command_help.out;
    EXPECT_EQ(command_help.error, "") << command;
  }
}

TEST(cli, unknown_flags_and_commands_name_the_nearest) {
  expect_refused({"run", "--temprature", "1", "-p", "x"}, "unknown flag --temprature: did you mean --temperature?");
  expect_refused({"run", "--tepm=1", "-p", "x"}, "unknown flag --tepm: did you mean --temp?");
  expect_refused({"run", "--max_tokens", "1", "-p", "x"}, "unknown flag --max_tokens: did you mean --max-tokens?");
  expect_refused({"chat", "--sistem", "x"}, "did you mean --system?");
  expect_refused({"logits", "--ids", "1", "--out", "x", "--chnuk", "3"}, "did you mean --chunk?");
  expect_refused({"run", "--qqqqqqqqqqqq"}, "unknown flag --qqqqqqqqqqqq (see tetrad run --help)");
  expect_refused({"rnu"}, "unknown command 'rnu': did you mean run?");
  expect_refused({"tokenise"}, "did you mean tokenize?");
  expect_refused({"run", "hello"}, "unexpected argument 'hello'");
  expect_refused({}, "a command is needed");
}

TEST(cli, bad_values_name_the_field) {
  expect_refused({"run", "-p", "x", "--top-k", "many"}, "--top-k");
  expect_refused({"run", "-p", "x", "--temp", "-1"}, "temperature must be between 0 (greedy) and 100, got -1");
  expect_refused({"run", "-p", "x", "--temp", "nan"}, "temperature must be between");
  expect_refused({"run", "-p", "x", "--top-p", "0"}, "top_p must be greater than 0 and at most 1, got 0");
  expect_refused({"run", "-p", "x", "--top-k", "-2"}, "top_k must be");
  expect_refused({"run", "-p", "x", "-n", "0"}, "--max-tokens must be at least 1, got 0");
  expect_refused({"run", "-p", "x", "--seed", "-1"}, "--seed must be a whole number from 0 to 18446744073709551615, got '-1'");
  expect_refused({"run", "-p", "x", "--seed", "18446744073709551616"}, "--seed must be");
  expect_refused({"run", "-p", "x", "--logprobs", "21"}, "logprobs must be between 0 and 20, got 21");
  expect_refused({"run", "-p", "x", "--stop", ""}, "stop[0] is empty");
  expect_refused({"run", "-p", "x", "--logit-bias", "a:b"}, "--logit-bias must be ID:BIAS");
  expect_refused({"run", "-p", "x", "--logit-bias", "4096:1"}, "token id 4096 is outside the vocabulary [0, 4096)");
  expect_refused({"run", "-p", "x", "--device", "cuda:0"}, "no CUDA backend");
  expect_refused({"run", "-p", "x", "--device", "gpu"}, "--device must be auto, cpu or cuda:N");
  expect_refused({"run", "-p", "x", "--threads", "-1"}, "--threads");
  expect_refused({"run", "-p", "x", "--max-model-len", "12q"}, "--max-model-len must be a number of tokens");
  expect_refused({"run", "-p", "x", "--max-model-len", "1m"}, "the model has 4096 positions");
}

TEST(cli, the_prompt_has_exactly_one_source) {
  expect_refused({"run"}, "exactly one of -p, --messages and --ids");
  expect_refused({"run", "-p", "x", "--ids", "1"}, "exactly one of -p, --messages and --ids");
  expect_refused({"run", "--ids", "1", "--raw"}, "--raw goes with -p");
  expect_refused({"run", "--ids", "1", "--no-think"}, "for the chat template");
  expect_refused({"run", "--ids", "1,x"}, "--ids: token 1 must be a whole number from 0 to 2147483647, got 'x'");
  expect_refused({"run", "--ids", "5,-1"}, "token 1 must be a whole number from 0 to 2147483647, got '-1'");
  expect_refused({"run", "--ids", "1,99999999999"}, "token 1 must be");
  expect_refused({"run", "--ids", ""}, "no token ids");
  expect_refused({"run", "--messages", "/nowhere.json"}, "/nowhere.json: cannot be read");
  expect_refused({"run", "--messages", "-"}, "not valid JSON", "{");
}

TEST(cli, a_missing_checkpoint_is_named) {
  expect_refused({"run", "-m", "/nowhere", "-p", "x"}, "/nowhere: no such directory");
  expect_refused({"logits", "-m", "/nowhere", "--ids", "1", "--out", scratch("x")}, "/nowhere: no such directory");
}

nlohmann::json golden_cases() {
  std::ifstream file(kModel + "/golden-generate.json");
  return nlohmann::json::parse(file).at("cases");
}

std::string joined(const nlohmann::json& ids) {
  std::string text;
  for (const auto& id : ids) text += fmt::format("{}{}", text.empty() ? "" : " ", id.get<int>());
  return text;
}

TEST(cli, greedy_answers_equal_the_recorded_ones) {
  const nlohmann::json cases = golden_cases();
  ASSERT_EQ(cases.size(), 14u);
  for (const auto& golden : cases) {
    const Outcome by_ids = tetrad({"run", "--greedy", "-n", "64", "--print-ids", "--ids", "-"}, joined(golden["prompt_ids"]));
    EXPECT_EQ(by_ids.out, joined(golden["cpu_bf16"]["ids"]) + "\n") << golden["prompt"] << by_ids.error;
    const auto file = scratch("messages.json");
    nlohmann::json conversation;
    for (const char* key : {"messages", "tools", "flags"})
      if (!golden[key].is_null()) conversation[key] = golden[key];
    std::ofstream(file) << conversation;
    const Outcome by_messages = tetrad({"run", "--temp", "0", "-n", "64", "--special", "--messages", file});
    EXPECT_EQ(by_messages.out, golden["cpu_bf16"]["text"].get<std::string>() + "\n") << by_messages.error;
    std::filesystem::remove(file);
  }
}

TEST(cli, run_keeps_stdout_for_the_answer) {
  const Outcome outcome = tetrad({"run", "--greedy", "--no-think", "-p", "Situation: what does it mean?"});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.out, "Situation (noun): the general state of things.\n");
  EXPECT_NE(outcome.error.find("tokens/s"), std::string::npos);
  EXPECT_EQ(outcome.error.find('\x1b'), std::string::npos) << "escape codes without a terminal";
  EXPECT_NE(outcome.error.find("reading weights 100 %"), std::string::npos) << outcome.error;
  EXPECT_EQ(tetrad({"run", "--greedy", "--no-think", "-p", "-"}, "Situation: what does it mean?\n").out, outcome.out);
  EXPECT_EQ(tetrad({"run", "--greedy", "--raw", "-p", golden_cases()[0]["prompt"].get<std::string>()}).out, outcome.out);
  EXPECT_EQ(tetrad({"run", "--greedy", "--no-think", "--stop", "general", "-p", "Situation: what does it mean?"}).out,
            "Situation (noun): the \n");
  EXPECT_EQ(tetrad({"run", "--greedy", "--no-think", "-n", "1", "-p", "Situation: what does it mean?"}).out, "S\n");
}

TEST(cli, the_seed_decides_a_sampled_answer) {
  const std::vector<std::string> base{"run", "--raw",   "-p", "The", "--temp", "1.5",         "--top-k",
                                      "0",   "--top-p", "1",  "-n",  "20",     "--print-ids", "--seed"};
  const auto with_seed = [&](const char* seed) {
    std::vector<std::string> arguments = base;
    arguments.emplace_back(seed);
    return tetrad(arguments).out;
  };
  const std::string one = with_seed("1");
  EXPECT_EQ(with_seed("1"), one);
  EXPECT_NE(with_seed("2"), one);
}

TEST(cli, logprobs_go_to_stderr) {
  const Outcome outcome = tetrad({"run", "--greedy", "--no-think", "-n", "2", "--logprobs", "3", "-p", "Situation: what does it mean?"});
  EXPECT_EQ(count_of(outcome.error, "logprob "), 2) << outcome.error;
  EXPECT_NE(outcome.error.find("logprob 50 \"S\" -"), std::string::npos) << outcome.error;
}

TEST(cli, a_prompt_beyond_the_context_is_refused) {
  expect_refused({"run", "--ids", "1,2,3,4,5", "--max-model-len", "5"}, "the prompt has 5 tokens and the context holds 5");
  expect_refused({"run", "--ids", "4096"}, "prompt token 0 has id 4096, outside the vocabulary [0, 4096)");
  const Outcome outcome = tetrad({"run", "--greedy", "--ids", "1,2,3,4,5", "--max-model-len", "7", "--print-ids"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.error;
}

TEST(cli, chat_answers_piped_questions_without_escape_codes) {
  const Outcome outcome = tetrad(
      {"chat", "--greedy", "--no-think"},
      "Situation: what does it mean?\n\n/rest\n/help\n/system Be brief and exact.\nGive me a definition of declare.\n/exit\nnever asked\n");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.error;
  EXPECT_EQ(outcome.out, "Situation (noun): the general state of things.\nDeclare (verb): state emphatically and authoritatively.\n");
  EXPECT_NE(outcome.error.find("unknown command /rest: did you mean /reset?"), std::string::npos) << outcome.error;
  EXPECT_EQ((outcome.out + outcome.error).find('\x1b'), std::string::npos);
}

TEST(cli, a_second_turn_sees_the_first) {
  for (const auto& golden : golden_cases()) {
    if (golden["messages"].size() != 3) continue;
    const Outcome outcome = tetrad({"chat", "--greedy", "--no-think"}, golden["messages"][0]["content"].get<std::string>() + "\n" +
                                                                           golden["messages"][2]["content"].get<std::string>() + "\n");
    const std::string expected =
        golden["messages"][1]["content"].get<std::string>() + "\n" + golden["expected_answer"].get<std::string>() + "\n";
    EXPECT_EQ(outcome.out, expected) << outcome.error;
  }
}

TEST(cli, logits_are_written_and_do_not_depend_on_the_chunk) {
  const auto whole = scratch("whole.safetensors"), pieces = scratch("pieces.safetensors");
  const std::vector<std::string> base{"logits", "--ids", "4033,280,198,50,282,2514,25", "--decode-ids", "[546, 471]", "--out"};
  std::vector<std::string> arguments = base;
  arguments.emplace_back(whole);
  const Outcome outcome = tetrad(arguments);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.error;
  EXPECT_EQ(outcome.out, "");
  arguments = base;
  arguments.insert(arguments.end(), {pieces.string(), "--chunk", "3"});
  ASSERT_EQ(tetrad(arguments).exit_code, 0);
  const std::string bytes = read_file(whole);
  EXPECT_GT(bytes.size(), 9u * 4096u * 4u);
  EXPECT_TRUE(bytes == read_file(pieces)) << "chunks change logits";
  std::filesystem::remove(whole);
  std::filesystem::remove(pieces);
  expect_refused({"logits", "--ids", "1", "--out", "/nowhere/x.safetensors"}, "/nowhere/x.safetensors");
  expect_refused({"logits", "--ids", "1,4096", "--out", whole}, "--ids: token 1 has id 4096");
}

TEST(suggest, distances) {
  EXPECT_EQ(edit_distance("", ""), 0u);
  EXPECT_EQ(edit_distance("abc", ""), 3u);
  EXPECT_EQ(edit_distance("temp", "tepm"), 1u);
  EXPECT_EQ(edit_distance("max_tokens", "Max-Tokens"), 0u);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
}

TEST(suggest, far_words_get_no_suggestion) {
  const std::vector<std::string> known{"--temp", "--top-k", "--top-p"};
  EXPECT_EQ(nearest_name("--top-kk", known), "--top-k");
  EXPECT_EQ(nearest_name("--something-else", known), "");
  EXPECT_EQ(nearest_name(std::string(100000, 'x'), known), "");
  EXPECT_EQ(nearest_name("--max-mod", {"--max-tokens", "--max-model-len"}), "--max-model-len");
}

TEST(options, token_counts) {
  EXPECT_EQ(parse_token_count("4096", "-c"), 4096);
  EXPECT_EQ(parse_token_count("128k", "-c"), 131072);
  EXPECT_EQ(parse_token_count("1M", "-c"), 1 << 20);
  for (const char* bad : {"", "k", "0", "-1", "1.5k", "12kk", "99999999999", "4194304k", "auto "})
    EXPECT_THROW(parse_token_count(bad, "-c"), InputError) << bad;
}

TEST(options, token_ids) {
  EXPECT_EQ(parse_token_ids("[1, 2,3]\n4", "x"), (std::vector<int>{1, 2, 3, 4}));
  EXPECT_THROW(parse_token_ids("1.5", "x"), InputError);
  EXPECT_THROW(parse_token_ids("[]", "x"), InputError);
  EXPECT_THROW(parse_token_ids("2147483648", "x"), InputError);
  for (const char* gap : {"1,,2", ",1", "1,", "1, ,2", "[1,]"}) EXPECT_THROW(parse_token_ids(gap, "x"), InputError) << gap;
  EXPECT_EQ(parse_token_ids("[[1], [2]]", "x"), (std::vector<int>{1, 2}));
}

TEST(progress, bar) {
  EXPECT_EQ(progress_bar("x", 0), "x [..............................]   0 %");
  EXPECT_EQ(progress_bar("x", 50), "x [###############...............]  50 %");
  EXPECT_EQ(progress_bar("x", 100), "x [##############################] 100 %");
}

TEST(progress, plain_lines_come_once_a_tenth) {
  ::testing::internal::CaptureStderr();
  Progress progress("x", false);
  for (int i = 0; i <= 1000; ++i) progress.update(static_cast<std::uint64_t>(i), 1000);
  progress.finish();
  const std::string lines = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(count_of(lines, "\n"), 11) << lines;
  EXPECT_NE(lines.find("x 100 %\n"), std::string::npos);
}

TEST(chat_session, answers_are_split_at_the_thinking) {
  const auto split = [](const std::string& text, bool starts) {
    const SplitAnswer parts = split_answer(text, starts);
    return parts.thinking + "|" + parts.content;
  };
  EXPECT_EQ(split("plain\n", false), "|plain");
  EXPECT_EQ(split("why\n</think>\n\nbecause", true), "why|because");
  EXPECT_EQ(split("why, cut", true), "why, cut|");
  EXPECT_EQ(split("<think>\na\n</think>\n\nb", false), "a|b");
  EXPECT_EQ(split("a </think> b", false), "|a </think> b");
}

}  // namespace
}  // namespace tetrad::cli::cli_test
