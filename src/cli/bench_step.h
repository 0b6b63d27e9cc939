#pragma once
// tetrad bench step.

namespace CLI {
class App;
}

namespace tetrad::cli {

void add_bench_step(CLI::App& app);

}  // namespace tetrad::cli
