#pragma once
// The built binary from outside: its output, its messages and its exit code.
#include <filesystem>
#include <string>
#include <vector>

namespace tetrad::test {

struct Outcome {
  int exit_code = -1;  // -1: ended by a signal
  std::string out, error;
};

// `redirections` go to the shell behind those of the test: "2>&-".
Outcome tetrad(const std::vector<std::string>& arguments, const std::string& input = "", const std::string& redirections = "");

// Exit code 2, nothing on stdout, and one message that holds `said`, before any weights are read.
void expect_refused(const std::vector<std::string>& arguments, const std::string& said, const std::string& input = "");

int count_of(const std::string& text, const std::string& part);
std::filesystem::path scratch(const std::string& name);  // of this process alone

}  // namespace tetrad::test
