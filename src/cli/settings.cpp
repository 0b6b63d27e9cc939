#include "cli/settings.h"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <optional>

#include "base/error.h"
#include "cli/suggest.h"
#include "cli/terminal.h"
#include "cli/text_input.h"

namespace tetrad::cli {
namespace {

constexpr std::string_view kBlank = " \t\r";

std::string_view without_blanks(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(kBlank);
  return begin == std::string_view::npos ? std::string_view{} : text.substr(begin, text.find_last_not_of(kBlank) + 1 - begin);
}

// What stands behind the colon, without quotes or comment.
std::string value_of(std::string_view text, const std::string& where) {
  text = without_blanks(text);
  if (!text.empty() && (text.front() == '"' || text.front() == '\'')) {
    const std::size_t end = text.find(text.front(), 1);
    if (end == std::string_view::npos) fail<InputError>("{}: the quote is not closed", where);
    const std::string_view rest = without_blanks(text.substr(end + 1));
    if (!rest.empty() && rest.front() != '#') fail<InputError>("{}: nothing may stand behind the closing quote", where);
    return std::string(text.substr(1, end - 1));
  }
  for (std::size_t i = 0; i < text.size(); ++i)
    if (text[i] == '#' && (i == 0 || kBlank.find(text[i - 1]) != std::string_view::npos))
      return std::string(without_blanks(text.substr(0, i)));
  return std::string(text);
}

bool is_list(const CLI::Option& option) { return option.get_multi_option_policy() == CLI::MultiOptionPolicy::TakeAll; }

std::string spelled(std::string name, char from, char to) {
  std::replace(name.begin(), name.end(), from, to);
  return name;
}

constexpr std::string_view kVariablePrefix = "TETRAD_";

std::string variable_of(const std::string& name) {
  std::string variable = std::string(kVariablePrefix) + spelled(name, '-', '_');
  std::transform(variable.begin(), variable.end(), variable.begin(), [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return variable;
}

std::optional<std::pair<std::string, std::string>> from_environment(const CLI::Option& option) {
  for (const std::string& name : option.get_lnames()) {
    const std::string variable = variable_of(name);
    if (const char* value = std::getenv(variable.c_str())) return std::pair(variable, std::string(value));
  }
  return std::nullopt;
}

void set_option(CLI::Option& option, const std::vector<std::string>& values, const std::string& source) {
  try {
    for (const std::string& value : values) option.add_result(value);
    option.run_callback();
  } catch (const CLI::Error& error) {
    fail<InputError>("{}: {}", source, error.what());
  }
}

std::vector<std::string> list_items(const std::string& list) {
  std::vector<std::string> items;
  for (std::size_t begin = 0; begin <= list.size();) {
    const std::size_t comma = std::min(list.find(',', begin), list.size());
    if (const std::string_view item = without_blanks(std::string_view(list).substr(begin, comma - begin)); !item.empty())
      items.emplace_back(item);
    begin = comma + 1;
  }
  return items;
}

bool has_name(const CLI::Option& option, const std::string& key) {
  const std::string wanted = spelled(key, '_', '-');
  const auto& names = option.get_lnames();
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) { return spelled(name, '_', '-') == wanted; });
}

// The distance of names is that of what stands behind the prefix they share.
std::string nearest_variable(const std::string& given, const std::vector<std::string>& known) {
  std::vector<std::string> names;
  for (const std::string& name : known) names.push_back(name.substr(kVariablePrefix.size()));
  const std::string nearest = nearest_name(given.substr(kVariablePrefix.size()), names);
  return nearest.empty() ? "" : std::string(kVariablePrefix) + nearest;
}

bool is_of_the_command_line(const CLI::Option& option) {
  static const std::vector<std::string> kNames = {"help", "config"};
  return std::any_of(kNames.begin(), kNames.end(), [&](const std::string& name) { return has_name(option, name); });
}

}  // namespace

std::vector<Setting> parse_settings(const std::string& text, const std::string& where) {
  std::vector<Setting> settings;
  int number = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view raw = std::string_view(text).substr(begin, end - begin), line = without_blanks(raw);
    begin = end + 1;
    ++number;
    const std::string place = fmt::format("{}:{}", where, number);
    if (line.empty() || line.front() == '#' || (line == "---" && settings.empty())) continue;
    const std::size_t colon = line.find(':');
    if (colon == std::string_view::npos || colon == 0) fail<InputError>("{}: expected 'key: value'", place);
    if (kBlank.find(raw.front()) != std::string_view::npos || line.front() == '-')
      fail<InputError>("{}: lists and nested values are not supported: expected 'key: value' at the start of the line", place);
    settings.push_back({std::string(without_blanks(line.substr(0, colon))), value_of(line.substr(colon + 1), place), number});
  }
  return settings;
}

void apply_settings(CLI::App& command, const std::string& config_file) {
  std::vector<CLI::Option*> options = command.get_options([](const CLI::Option*) { return true; });
  std::erase_if(options, [](const CLI::Option* option) { return option->get_lnames().empty() || is_of_the_command_line(*option); });
  std::vector<CLI::Option*> unset;
  for (CLI::Option* option : options)
    if (option->count() == 0) unset.push_back(option);
  const auto settings = config_file.empty() ? std::vector<Setting>() : parse_settings(read_text(config_file), config_file);
  std::vector<std::vector<std::string>> of_file(options.size());
  std::vector<int> lines(options.size());
  for (const Setting& setting : settings) {
    const auto found = std::find_if(options.begin(), options.end(), [&](const CLI::Option* o) { return has_name(*o, setting.key); });
    if (found == options.end()) {
      std::vector<std::string> known;
      for (const CLI::Option* option : options) known.insert(known.end(), option->get_lnames().begin(), option->get_lnames().end());
      const std::string nearest = nearest_name(setting.key, known);
      fail<InputError>("{}:{}: unknown key '{}'{}", config_file, setting.line, setting.key,
                       nearest.empty() ? "" : ": did you mean " + nearest + "?");
    }
    auto& values = of_file[static_cast<std::size_t>(found - options.begin())];
    if (!values.empty() && !is_list(**found)) fail<InputError>("{}:{}: '{}' is given twice", config_file, setting.line, setting.key);
    values.push_back(setting.value);
    lines[static_cast<std::size_t>(found - options.begin())] = setting.line;
  }
  for (CLI::Option* option : unset) {
    const auto index = static_cast<std::size_t>(std::find(options.begin(), options.end(), option) - options.begin());
    if (const auto variable = from_environment(*option))
      set_option(*option, is_list(*option) ? list_items(variable->second) : std::vector{variable->second}, variable->first);
    else if (!of_file[index].empty())
      set_option(*option, of_file[index], fmt::format("{}:{}", config_file, lines[index]));
  }
}

std::vector<std::string> unknown_variables(const CLI::App& command) {
  constexpr std::size_t kMaxShown = 100, kMaxTold = 16;
  std::vector<std::string> known, told;
  for (const CLI::Option* option : command.get_options([](const CLI::Option*) { return true; }))
    if (!has_name(*option, "help"))
      for (const std::string& name : option->get_lnames()) known.push_back(variable_of(name));
  for (char** variable = environ; variable != nullptr && *variable != nullptr && told.size() < kMaxTold; ++variable) {
    const std::string_view entry = *variable;
    const std::string name(entry.substr(0, entry.find('=')));
    if (!name.starts_with(kVariablePrefix) || std::find(known.begin(), known.end(), name) != known.end()) continue;
    const std::string nearest = nearest_variable(name, known);
    told.push_back(fmt::format("the variable {} has no effect: there is no such setting{}", printable(name.substr(0, kMaxShown)),
                               nearest.empty() ? "" : ": did you mean " + nearest + "?"));
  }
  std::sort(told.begin(), told.end());
  return told;
}

}  // namespace tetrad::cli
