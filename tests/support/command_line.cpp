#include "support/command_line.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "support/checkpoint_edit.h"

namespace tetrad::test {
namespace {

std::string shell_quoted(const std::string& text) {
  std::string quoted = "'";
  for (const char c : text) {
    if (c == '\'')
      quoted += "'\\''";
    else
      quoted += c;
  }
  return quoted += '\'';
}

}  // namespace

std::filesystem::path scratch(const std::string& name) {
  return std::filesystem::path(::testing::TempDir()) / fmt::format("tetrad_cli_{}_{}", ::getpid(), name);
}

Outcome tetrad(const std::vector<std::string>& arguments, const std::string& input, const std::string& redirections) {
  const auto in = scratch("in"), out = scratch("out"), error = scratch("err");
  write_bytes(in, input);
  std::string command = shell_quoted(TETRAD_BINARY);
  for (const std::string& argument : arguments) command += fmt::format(" {}", shell_quoted(argument));
  command += fmt::format(" <{} >{} 2>{} {}", shell_quoted(in), shell_quoted(out), shell_quoted(error), redirections);
  const int status = std::system(command.c_str());
  // The shell reports a signal of its child as 128 and its number.
  const bool exited = WIFEXITED(status) && WEXITSTATUS(status) < 128;
  Outcome outcome{exited ? WEXITSTATUS(status) : -1, read_bytes(out), read_bytes(error)};
  for (const auto& path : {in, out, error}) std::filesystem::remove(path);
  return outcome;
}

int count_of(const std::string& text, const std::string& part) {
  int count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) ++count;
  return count;
}

void expect_refused(const std::vector<std::string>& arguments, const std::string& said, const std::string& input) {
  const Outcome outcome = tetrad(arguments, input);
  EXPECT_EQ(outcome.exit_code, 2) << outcome.error;
  EXPECT_EQ(outcome.out, "");
  EXPECT_NE(outcome.error.find(said), std::string::npos) << "expected: " << said << "\ngot: " << outcome.error;
  EXPECT_EQ(count_of(outcome.error, "tetrad: error: "), 1) << outcome.error;
  EXPECT_EQ(count_of(outcome.error, "json.exception"), 0) << outcome.error;
  EXPECT_EQ(count_of(outcome.error, "reading weights"), 0) << "refused only after the weights were loaded";
}

}  // namespace tetrad::test
