#pragma once
// tetrad bench grammar: what answers in a given form cost beside a step.
namespace CLI {
class App;
}

namespace tetrad::cli {

void add_bench_grammar(CLI::App& bench);

}  // namespace tetrad::cli
