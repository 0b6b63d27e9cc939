#include <CLI/CLI.hpp>

#include "cli/commands.h"

int main(int argc, char** argv) {
  CLI::App app{"tetrad: inference for qwen4_exp checkpoints"};
  CLI11_PARSE(app, argc, argv);
  return 0;
}
