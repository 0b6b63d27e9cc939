// What the binary refuses, and how it says so: contradictions, wrong places, damaged text, lost output.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <string>
#include <vector>

#include "support/checkpoint_edit.h"
#include "support/command_line.h"

namespace tetrad::test::cli_refusals_test {
namespace {

namespace fs = std::filesystem;

const std::string kTiny = TETRAD_MODELS "/tetrad-tiny";

TEST(refusals, options_that_contradict_each_other) {
  expect_refused({"run", "-p", "x", "--greedy", "--temp", "0.5"}, "--greedy is --temp 0 and goes without --temp 0.5");
  expect_refused({"tokenize", "--skip-special", "x"}, "--skip-special goes with --decode");
  expect_refused({"tokenize", "--no-added", "--decode", "1"}, "--no-added goes without --decode");
  expect_refused({"bench", "decode", "--layers", "4"}, "--layers requires --synthetic");
  expect_refused({"bench", "decode", "--seed", "4"}, "--seed requires --synthetic");
  expect_refused({"bench", "decode", "-m", kTiny, "--synthetic", "bench-1b"}, "--model excludes --synthetic");
  expect_refused({"bench", "prefill", "--tokens", "4"}, "unknown flag --tokens");
  expect_refused({"bench", "decode", "-c", "64"}, "unknown flag -c");
}

TEST(refusals, control_bytes_reach_no_terminal) {
  expect_refused({"run", "-p", "x", "-m", "no\x1b[31msuch"}, "no\\x1b[31msuch");
  expect_refused({"run", "-p", "x", "--logit-bias", "99999999999:100"}, "--logit-bias must be ID:BIAS");
}

TEST(refusals, values_that_are_none) {
  for (const char* flag : {"-n", "--temp", "--top-k", "--top-p", "--min-p", "--repeat-penalty", "--logprobs"})
    expect_refused({"run", "-p", "x", flag, ""}, "must be a number, got nothing");
  expect_refused({"run", "--ids", "1,,2"}, "--ids: token 1 is missing: a comma with no id before it");
  expect_refused({"run", "--ids", "99999999999"}, "--ids: token 0 must be a whole number from 0 to 2147483647, got '99999999999'");
  expect_refused({"synth", "--out", scratch("s"), "--seed", "-1"}, "must be a whole number of at least 0, got '-1'");
  expect_refused({"synth", "--out", scratch("s"), "--layers", "0"}, "must be a whole number of at least 1, got '0'");
  expect_refused({"synth", "--out", scratch("s"), "--shard-mib", "0"}, "--shard-mib");
  for (const std::vector<std::string>& command : {std::vector<std::string>{"verify", kTiny, "--threads", "100000"},
                                                  {"bench", "kernels", "--threads", "-1"},
                                                  {"logits", "--ids", "1", "--out", "x", "--chunk", "-1"},
                                                  {"synth", "--out", scratch("s"), "--experts", "-1"}}) {
    const Outcome outcome = tetrad(command);
    EXPECT_EQ(outcome.exit_code, 2) << outcome.error;
    EXPECT_EQ(outcome.out, "");
    EXPECT_LT(outcome.error.size(), 120u) << outcome.error;  // no largest double in full
  }
}

TEST(refusals, numbers_say_what_is_expected) {
  expect_refused({"serve", "--port", "abc"}, "--port: must be a whole number from 0 to 65535, got 'abc'");
  expect_refused({"serve", "--port", "65536"}, "--port: must be a whole number from 0 to 65535, got '65536'");
  expect_refused({"serve", "--queue-timeout", "soon"}, "--queue-timeout: must be a number from 0 to 86400, got 'soon'");
  expect_refused({"bench", "serve", "--turns", "1.5"}, "--turns: must be a whole number from 1 to 1024, got '1.5'");
}

TEST(refusals, a_server_that_is_not_there) {
  const Outcome outcome = tetrad({"bench", "serve", "--base-url", "http://127.0.0.1:1"});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_NE(outcome.error.find("connect: Connection refused"), std::string::npos) << outcome.error;
}

TEST(refusals, a_benchmark_longer_than_the_model) {
  expect_refused({"bench", "decode", "--prompt", "5000"}, "prompt + tokens exceed the model's 4096 positions");
  expect_refused({"bench", "decode", "--prompt", "4000", "--tokens", "64"}, "prompt + tokens exceed the model's 4096 positions");
  expect_refused({"bench", "prefill", "--prompt", "4097"}, "prompt + tokens exceed the model's 4096 positions");
}

TEST(refusals, a_wrong_word_is_named_before_what_is_missing) {
  expect_refused({"bench", "foo"}, "unknown command 'foo'");
  expect_refused({"bench", "deocde"}, "unknown command 'deocde': did you mean decode?");
  expect_refused({"logits", "--otu", "x"}, "unknown flag --otu: did you mean --out?");
  expect_refused({"run", "-z", "x"}, "unknown flag -z (see tetrad run --help)");
  expect_refused({"bench", "decode", "--synthetic", "nope"}, "--synthetic: expected qwen3.8-flash-next, bench-1b");
  expect_refused({"synth", "--out", scratch("s"), "--like", "nope"}, "--like: expected");
}

TEST(refusals, places_that_hold_no_checkpoint) {
  const TempDir empty;
  const std::string file = kTiny + "/config.json";
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"run", "-p", "x", "-m"}, {"verify"}, {"bench", "decode", "-m"}}) {
    const auto with = [&](const std::string& place) {
      std::vector<std::string> arguments = command;
      arguments.push_back(place);
      return arguments;
    };
    expect_refused(with("/nowhere"), "/nowhere: no such directory; a checkpoint directory with config.json");
    expect_refused(with(file), "config.json: is a file; a checkpoint directory with config.json");
    expect_refused(with(empty.path()), "holds no config.json; a checkpoint directory with config.json");
  }
  expect_refused({"run", "--ids", "nofile.txt"}, "--ids nofile.txt: no such file");
  expect_refused({"run", "--ids", "-"}, "--ids: standard input: no token ids in it");
  expect_refused({"logits", "--ids", "1", "--decode-ids", "2,x", "--out", scratch("x")}, "--decode-ids: token 1 must be");
  for (const char* command : {"render", "run"}) {
    std::vector<std::string> arguments{command};
    if (arguments[0] == "run") arguments.emplace_back("--messages");
    arguments.emplace_back("/nowhere.json");
    expect_refused(arguments, "/nowhere.json: cannot be read: No such file or directory");
    arguments.back() = "-";
    expect_refused(arguments, "standard input: not valid JSON at byte", "{");
  }
}

TEST(refusals, json_is_explained_without_the_names_of_a_library) {
  const TempDir folder;
  write_bytes(folder / "config.json", "{\"a\": }");
  expect_refused({"inspect", "--expect", folder / "config.json"}, "config.json: not valid JSON");
  expect_refused({"run", "-p", "x", "-m", folder.path()}, "config.json: not valid JSON");
  const TempDir copy;
  copy_checkpoint(kTiny, copy.path());
  for (const char* file : {"tokenizer.json", "generation_config.json"}) {
    const std::string whole = read_bytes(copy / file);
    write_bytes(copy / file, "{\"a\": }");
    expect_refused({"run", "-p", "x", "-m", copy.path()}, fmt::format("{}: not valid JSON: parse error", file));
    write_bytes(copy / file, whole);
  }
}

TEST(refusals, conversations_are_read_alike_by_run_and_render) {
  const TempDir folder;
  const std::string list = R"([{"role": "user", "content": "Who are you?"}])";
  write_bytes(folder / "list.json", list);
  write_bytes(folder / "object.json", fmt::format(R"({{"messages": {}}})", list));
  const Outcome rendered = tetrad({"render", folder / "list.json"});
  EXPECT_EQ(rendered.exit_code, 0) << rendered.error;
  EXPECT_NE(rendered.out.find("Who are you?"), std::string::npos);
  EXPECT_EQ(tetrad({"render", folder / "object.json"}).out, rendered.out);
  EXPECT_EQ(tetrad({"render", "-"}, list).out, rendered.out);
}

TEST(refusals, parts_of_a_message_that_are_not_text) {
  const std::string messages = R"([{"role": "user", "content": "x"},
    {"role": "user", "content": [{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {"url": "a.png"}}]}])";
  expect_refused({"run", "--messages", "-"}, "messages[1].content[1]: only parts of type text with a text are read", messages);
  expect_refused({"run", "--messages", "-"}, "messages[0].content[0]", R"([{"role": "user", "content": [{"image": "a.png"}]}])");
}

TEST(refusals, text_that_is_not_utf8) {
  expect_refused({"run", "-p", "ab\xff"}, "-p: not UTF-8 at byte 2");
  expect_refused({"run", "-p", "-"}, "-p: not UTF-8 at byte 0", "\xc3");
  expect_refused({"run", "--raw", "-p", "a\xc3"}, "-p: not UTF-8 at byte 1");
  expect_refused({"run", "-p", "x", "--system", "\xed\xa0\x80"}, "--system: not UTF-8 at byte 0");
  expect_refused({"chat", "--system", "\xff"}, "--system: not UTF-8 at byte 0");
}

TEST(refusals, chat_goes_on_after_a_line_it_cannot_take) {
  const Outcome outcome = tetrad({"chat", "--greedy", "--no-think"}, "caf\xe9\n/system \xff\nSituation: what does it mean?\n");
  EXPECT_EQ(outcome.out, "Situation (noun): the general state of things.\n") << outcome.error;
  EXPECT_NE(outcome.error.find("the line: not UTF-8 at byte 3"), std::string::npos) << outcome.error;
  EXPECT_EQ(count_of(outcome.error, "tetrad: error: "), 2) << outcome.error;
  EXPECT_EQ(outcome.exit_code, 2) << "the caller learns that a line was left out";
}

TEST(refusals, logits_replace_nothing_but_files) {
  const TempDir folder;
  const fs::path pipe = folder / "pipe", link = folder / "link", real = folder / "real.safetensors", dangling = folder / "dangling";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  fs::create_symlink("pipe", folder / "link_to_pipe");
  for (const fs::path& target : {pipe, folder / "link_to_pipe", folder.path()})
    expect_refused({"logits", "--ids", "1", "--out", target}, "is not a regular file and is left alone");
  EXPECT_TRUE(fs::is_fifo(fs::symlink_status(pipe)));
  EXPECT_TRUE(fs::is_symlink(folder / "link_to_pipe"));
  ASSERT_EQ(::mkfifo((folder / "x.part").c_str(), 0600), 0);
  expect_refused({"logits", "--ids", "1", "--out", folder / "x"}, "x.part: is not a regular file");

  write_bytes(real, "old");
  fs::create_symlink("real.safetensors", link);
  fs::create_symlink("new.safetensors", dangling);
  for (const fs::path& target : {link, dangling}) {
    const Outcome outcome = tetrad({"logits", "--ids", "1", "--out", target});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.error;
    EXPECT_TRUE(fs::is_symlink(target));
  }
  EXPECT_GT(fs::file_size(real), 4096u);
  EXPECT_EQ(read_bytes(real), read_bytes(folder / "new.safetensors"));
  fs::create_symlink("loop", folder / "loop");
  expect_refused({"logits", "--ids", "1", "--out", folder / "loop"}, "symbolic links follow each other");
  expect_refused({"logits", "--ids", "1", "--out", "-"}, "--out must name a file, got '-'");
  expect_refused({"logits", "--ids", "1", "--out", "/nope/x"}, "/nope/x: cannot be written: No such file or directory");
}

TEST(refusals, synth_writes_into_empty_directories_only) {
  const TempDir folder;
  write_bytes(folder / "notes.txt", "mine");
  expect_refused({"synth", "--out", folder.path()}, "already holds notes.txt; give an empty directory");
  EXPECT_EQ(read_bytes(folder / "notes.txt"), "mine");
  EXPECT_FALSE(fs::exists(folder / "config.json"));
}

TEST(lost_output, a_closed_or_full_stderr_costs_no_answer) {
  for (const char* lost : {"2>&-", "2>/dev/full"}) {
    const Outcome outcome = tetrad({"run", "--greedy", "--no-think", "-p", "Situation: what does it mean?"}, "", lost);
    EXPECT_EQ(outcome.exit_code, 0) << lost;
    EXPECT_EQ(outcome.out, "Situation (noun): the general state of things.\n") << lost;
    EXPECT_EQ(tetrad({"run", "--nonsense"}, "", lost).exit_code, 2) << lost;
    EXPECT_EQ(tetrad({}, "", lost).exit_code, 2) << lost;
  }
}

TEST(lost_output, a_file_does_not_take_the_place_of_a_closed_stderr) {
  const fs::path whole = scratch("whole.safetensors"), closed = scratch("closed.safetensors");
  ASSERT_EQ(tetrad({"logits", "--ids", "1,2", "--out", whole}).exit_code, 0);
  ASSERT_EQ(tetrad({"logits", "--ids", "1,2", "--out", closed}, "", "<&- >&- 2>&-").exit_code, 0);
  EXPECT_TRUE(read_bytes(whole) == read_bytes(closed));
  fs::remove(whole);
  fs::remove(closed);
}

TEST(lost_output, a_lost_stdout_is_a_failure) {
  for (const std::vector<std::string>& command : {std::vector<std::string>{"--version"},
                                                  {"--help"},
                                                  {"run", "--help"},
                                                  {"inspect", kTiny},
                                                  {"tokenize", "x"},
                                                  {"verify", TETRAD_GOLDENS "/variant-ngram2"}})
    for (const char* lost : {">&-", ">/dev/full"}) {
      const Outcome outcome = tetrad(command, "", lost);
      EXPECT_EQ(outcome.exit_code, 1) << command[0] << lost;
      EXPECT_NE(outcome.error.find("writing to standard output failed"), std::string::npos) << command[0] << lost << outcome.error;
    }
}

TEST(without_tokenizer, ids_to_logits_and_to_ids) {
  const TempDir copy;
  copy_checkpoint(kTiny, copy.path());
  const std::vector<std::string> ids{"--ids", "4033,280,198,50", "-m"}, generate{"run", "--greedy", "-n", "8", "--print-ids"};
  const auto joined = [](std::vector<std::string> a, const std::vector<std::string>& b, const std::string& place) {
    a.insert(a.end(), b.begin(), b.end());
    a.push_back(place);
    return a;
  };
  const Outcome with = tetrad(joined(generate, ids, kTiny));
  fs::remove(copy / "tokenizer.json");
  const Outcome without = tetrad(joined(generate, ids, copy.path()));
  EXPECT_EQ(without.exit_code, 0) << without.error;
  EXPECT_EQ(without.out, with.out);
  EXPECT_EQ(tetrad(joined({"logits", "--out", copy / "logits"}, ids, copy.path())).exit_code, 0);
  expect_refused(joined({"run"}, ids, copy.path()), "tokenizer.json");
  expect_refused(joined({"run", "--print-ids", "--stop", "x"}, ids, copy.path()), "tokenizer.json");
}

}  // namespace
}  // namespace tetrad::test::cli_refusals_test
