// Flags from a file and from the environment.
#include "cli/settings.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "base/error.h"
#include "support/command_line.h"

namespace tetrad::test::settings_test {
namespace {

std::string file_of(const std::string& text) {
  const std::filesystem::path path = scratch("settings.yaml");
  std::ofstream(path) << text;
  return path.string();
}

TEST(settings, lines_of_a_file) {
  const auto settings = cli::parse_settings("---\n# all\nport: 81  # not 80\n\nhost: \"0.0.0.0 # a\"\r\nno-ui: 'true' # b\nuds:\n", "f");
  ASSERT_EQ(settings.size(), 4u);
  EXPECT_EQ(settings[0].key, "port");
  EXPECT_EQ(settings[0].value, "81");
  EXPECT_EQ(settings[0].line, 3);
  EXPECT_EQ(settings[1].value, "0.0.0.0 # a");
  EXPECT_EQ(settings[2].value, "true");
  EXPECT_EQ(settings[3].value, "");
  for (const char* wrong : {"port 80", ": 80", "a:\n  b: c", "names:\n- a", "a: 'b", "a: \"b\" c"})
    EXPECT_THROW((void)cli::parse_settings(wrong, "f"), InputError) << wrong;
}

TEST(settings, refusals_name_their_source) {
  const auto with = [](const std::string& text) { return std::vector<std::string>{"serve", "-m", "/nowhere", "--config", file_of(text)}; };
  expect_refused(with("prot: 80"), "settings.yaml:1: unknown key 'prot': did you mean port?");
  expect_refused(with("port: 80000"), "settings.yaml:1: --port");
  expect_refused(with("strict-fields: perhaps"), "settings.yaml:1: ");
  expect_refused(with("port: 80\nport: 81"), "settings.yaml:2: 'port' is given twice");
  expect_refused(with("config: x"), "unknown key 'config'");
  expect_refused({"serve", "--config", "/no/such/file"}, "/no/such/file");
  expect_refused({"serve", "--allowed-origins", "a.example"}, "--allowed-origins must be '*' or origins");
  ::setenv("TETRAD_QUEUE_FULL_STATUS", "500", 1);
  expect_refused({"serve", "-m", "/nowhere"}, "TETRAD_QUEUE_FULL_STATUS");
  ::unsetenv("TETRAD_QUEUE_FULL_STATUS");
}

// The directory is refused, which shows the value that counted.
TEST(settings, command_line_before_environment_before_file) {
  const std::string file = file_of("model: /from-file\nserved_model_name: a\nserved-model-name: b\n");
  expect_refused({"serve", "--config", file}, "/from-file");
  ::setenv("TETRAD_MODEL", "/from-environment", 1);
  expect_refused({"serve", "--config", file}, "/from-environment");
  expect_refused({"serve", "--config", file, "-m", "/from-line"}, "/from-line");
  ::setenv("TETRAD_CONFIG", file.c_str(), 1);
  ::unsetenv("TETRAD_MODEL");
  expect_refused({"serve"}, "/from-file");
  ::unsetenv("TETRAD_CONFIG");
}

// Told and not refused: the directory is what is refused.
TEST(settings, variables_that_are_no_setting_are_told) {
  for (const char* name : {"TETRAD_MAX_NUM_SEQ", "TETRAD_MODLE", "TETRAD_SOMETHING_ELSE_ALTOGETHER", "TETRAD_API_KEY"})
    ::setenv(name, "XYZZY", 1);
  const Outcome outcome = tetrad({"serve", "-m", "/nowhere"});
  for (const char* name : {"TETRAD_MAX_NUM_SEQ", "TETRAD_MODLE", "TETRAD_SOMETHING_ELSE_ALTOGETHER", "TETRAD_API_KEY"}) ::unsetenv(name);
  EXPECT_EQ(outcome.exit_code, 2) << outcome.error;
  EXPECT_EQ(count_of(outcome.error, "warning: the variable "), 3) << outcome.error;
  for (const char* said : {"TETRAD_MAX_NUM_SEQ has no effect: there is no such setting: did you mean TETRAD_MAX_NUM_SEQS?",
                           "TETRAD_MODLE has no effect: there is no such setting: did you mean TETRAD_MODEL?",
                           "TETRAD_SOMETHING_ELSE_ALTOGETHER has no effect: there is no such setting\n"})
    EXPECT_NE(outcome.error.find(said), std::string::npos) << outcome.error;
  EXPECT_EQ(count_of(outcome.error, "XYZZY"), 0) << outcome.error;
}

}  // namespace
}  // namespace tetrad::test::settings_test
