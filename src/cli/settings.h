#pragma once
// Flags of a command that come from elsewhere than its command line: the command line counts before the environment, that before the file.
#include <string>
#include <utility>
#include <vector>

namespace CLI {
class App;
}

namespace tetrad::cli {

struct Setting {
  std::string key, value;
  int line = 0;
};

// A file of lines `key: value`, a flat part of YAML: comments from '#' at the start of a line or behind a blank, values plain or in single
// or double quotes (as they stand: no escapes), blank lines, "---" at the start. Throws InputError with name and line.
std::vector<Setting> parse_settings(const std::string& text, const std::string& where);

// Gives every option of the command that its command line does not set the value of the variable TETRAD_NAME or of the file's line `name:`,
// NAME being any of its long names with '_' for '-'. A flag takes true or false. Options that may be repeated take several lines, or a list
// with commas in the variable. config_file "": no file. Throws InputError for unknown keys and bad values, naming where they come from.
void apply_settings(CLI::App& command, const std::string& config_file);

// What is to be said of the variables TETRAD_... of the environment that are no option of the command: their names, and which one may have
// been meant. Never their values, which may be secret.
std::vector<std::string> unknown_variables(const CLI::App& command);

}  // namespace tetrad::cli
