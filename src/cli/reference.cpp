// `tetrad reference`: every command and option as JSON, from the same description that parses them. The manual page, docs/cli.md and the
// completions of shells are made of it (scripts/make_cli_docs.py).
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "cli/commands.h"

namespace tetrad::cli {
namespace {

using Json = nlohmann::ordered_json;

std::vector<std::string> names_of(const CLI::Option& option) {
  std::vector<std::string> names;
  for (const std::string& name : option.get_snames()) names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) names.push_back("--" + name);
  if (names.empty()) names.push_back(option.get_name());  // positional
  return names;
}

std::vector<std::string> sorted_names(const std::set<CLI::Option*>& options) {
  std::vector<std::string> names;
  for (const CLI::Option* option : options) names.push_back(names_of(*option).back());
  std::sort(names.begin(), names.end());
  return names;
}

Json option_json(const CLI::Option& option) {
  Json json;
  json["names"] = names_of(option);
  json["value"] = option.get_items_expected_max() == 0 ? "" : option.get_type_name();
  json["repeatable"] = option.get_multi_option_policy() == CLI::MultiOptionPolicy::TakeAll || option.get_items_expected_max() > 1;
  json["required"] = option.get_required();
  json["default"] = option.get_default_str();
  json["variable"] = option.get_envname();
  json["needs"] = sorted_names(option.get_needs());
  json["excludes"] = sorted_names(option.get_excludes());
  json["description"] = option.get_description();
  return json;
}

Json command_json(const CLI::App& command) {
  Json json;
  json["name"] = command.get_name();
  json["description"] = command.get_description();
  json["footer"] = command.get_footer();
  json["options"] = Json::array();
  for (const CLI::Option* option : command.get_options())
    if (!option->get_group().empty()) json["options"].push_back(option_json(*option));
  json["commands"] = Json::array();
  for (const CLI::App* below : command.get_subcommands([](const CLI::App* app) { return !app->get_group().empty(); }))
    json["commands"].push_back(command_json(*below));
  return json;
}

}  // namespace

void add_reference(CLI::App& app, int&) {
  app.callback([&app] { fmt::print("{}\n", command_json(*app.get_parent()).dump(1)); });
}

}  // namespace tetrad::cli
