// What the binary refuses, and how it says so: contradictions, wrong places, damaged text, lost output.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <string>
#include <vector>

#include "support/checkpoint_edit.h"
#include "support/command_line.h"

namespace tetrad::test {
namespace {

namespace fs = std::filesystem;

const std::string kTiny = TETRAD_MODELS "/tetrad-tiny";

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

TEST(lost_output, a_lost_stdout_is_a_failure) {
  for (const std::vector<std::string>& command : {std::vector<std::string>{"--version"},
                                                  {"--help"},
                                                  {"run", "--help"},
                                                  {"inspect", kTiny},
                                                  {"tokenize", "x"},
                                                  {"bench", "kernels", "--json"}})
    for (const char* lost : {">&-", ">/dev/full"}) {
      const Outcome outcome = tetrad(command, "", lost);
      EXPECT_EQ(outcome.exit_code, 1) << command[0] << lost;
      EXPECT_NE(outcome.error.find("writing to standard output failed"), std::string::npos) << command[0] << lost << outcome.error;
    }
}

}  // namespace
}  // namespace tetrad::test
