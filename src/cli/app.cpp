#include "cli/app.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>
#include <iostream>
#include <new>
#include <string>
#include <vector>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/suggest.h"
#include "cli/terminal.h"

namespace tetrad::cli {
namespace {

constexpr int kRuntimeFailure = 1, kBadInput = 2;

struct Command {
  const char* name;
  const char* description;
  void (*add)(CLI::App& app, int& exit_code);
};
constexpr Command kCommands[] = {
    {"run", "Answer one prompt on stdout", add_run},
    {"chat", "Talk to the model", add_chat},
    {"serve", "Answer over HTTP, as OpenAI's and Anthropic's clients ask", add_serve},
    {"inspect", "Show what a checkpoint holds and what would be refused", add_inspect},
    {"tokenize", "Turn text into token ids and back", add_tokenize},
    {"render", "Turn messages, tools and flags into the prompt text", add_render},
    {"logits", "Write the logits of token ids to a file", add_logits},
    {"verify", "Compare with reference outputs beside a checkpoint", add_verify},
    {"synth", "Write a random checkpoint in the published layout", add_synth},
    {"bench", "Measure speed against the limits of this machine", add_bench},
    {"reference", "Describe every command and option as JSON", add_reference},
};

int report(int exit_code, std::string_view message) {
  std::fflush(stdout);
  say("tetrad: error: {}\n", printable(message));
  return exit_code;
}

bool stdout_failed() { return std::fflush(stdout) != 0 || std::ferror(stdout) != 0; }

const CLI::App& deepest_command(const CLI::App& app) {
  const CLI::App* command = &app;
  while (!command->get_subcommands().empty()) command = command->get_subcommands().front();
  return *command;
}

std::vector<std::string> known_flags(const CLI::App& command) {
  std::vector<std::string> flags;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) flags.push_back("--" + name);
    for (const std::string& name : option->get_snames()) flags.push_back("-" + name);
  }
  return flags;
}

std::vector<std::string> known_commands(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) names.push_back(command->get_name());
  return names;
}

std::string full_name(const CLI::App& command) {
  return command.get_parent() == nullptr ? command.get_name() : full_name(*command.get_parent()) + " " + command.get_name();
}

// What to say about arguments that no option took: the first flag among them, else the first word.
std::string unknown_argument(const CLI::App& app) {
  const CLI::App& command = deepest_command(app);
  const std::vector<std::string> extras = app.remaining(true);
  const auto is_flag = [](const std::string& text) { return text.size() > 1 && text[0] == '-'; };
  constexpr std::size_t kOneLetter = 2;  // "-x": every other letter is as near
  const auto flag = std::find_if(extras.begin(), extras.end(), is_flag);
  const std::string name = full_name(command);
  if (flag != extras.end()) {
    const std::string given = flag->substr(0, flag->find('='));
    const std::string nearest = given.size() > kOneLetter ? nearest_name(given, known_flags(command)) : "";
    return fmt::format("unknown flag {}{} (see {} --help)", given, nearest.empty() ? "" : ": did you mean " + nearest + "?", name);
  }
  const std::string given = extras.empty() ? "" : extras.front();
  const std::vector<std::string> commands = known_commands(command);
  if (commands.empty()) return fmt::format("unexpected argument '{}' (see {} --help)", given, name);
  const std::string nearest = nearest_name(given, commands);
  return fmt::format("unknown command '{}'{} (see {} --help)", given, nearest.empty() ? "" : ": did you mean " + nearest + "?", name);
}

int parse_and_run(CLI::App& app, int argc, const char* const* argv, const int& exit_code) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::ExtrasError&) {
    return report(kBadInput, unknown_argument(app));
  } catch (const CLI::RequiredError& error) {
    // What was written wrong explains what is missing.
    if (!app.remaining(true).empty()) return report(kBadInput, unknown_argument(app));
    return report(kBadInput, fmt::format("{} (see {} --help)", error.what(), full_name(deepest_command(app))));
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error, std::cout, std::cerr);  // --help and --version
    return report(kBadInput, fmt::format("{} (see {} --help)", error.what(), full_name(deepest_command(app))));
  }
  if (app.get_subcommands().empty()) {
    write_error(app.help());
    return report(kBadInput, "a command is needed");
  }
  return exit_code;
}

int run_and_report(int argc, const char* const* argv) {
  try {
    CLI::App app{"tetrad: inference for qwen4_exp checkpoints", "tetrad"};
    app.set_version_flag("--version", "tetrad " TETRAD_VERSION);
    int exit_code = 0;
    for (const Command& command : kCommands) command.add(*app.add_subcommand(command.name, command.description), exit_code);
    return parse_and_run(app, argc, argv, exit_code);
  } catch (const InputError& error) {
    return report(kBadInput, error.what());
  } catch (const LoadError& error) {
    return report(kBadInput, error.what());
  } catch (const std::bad_alloc&) {
    return report(kRuntimeFailure, "out of memory");
  } catch (const std::exception& error) {
    if (stdout_failed()) return kRuntimeFailure;  // which is said below
    return report(kRuntimeFailure, error.what());
  }
}

}  // namespace

int run_command_line(int argc, const char* const* argv) {
  hold_standard_streams();
  const int exit_code = run_and_report(argc, argv);
  if (!stdout_failed()) return exit_code;
  return report(exit_code == 0 ? kRuntimeFailure : exit_code, "writing to standard output failed: the output is incomplete");
}

}  // namespace tetrad::cli
