#pragma once
// tetrad bench serve.

namespace CLI {
class App;
}

namespace tetrad::cli {

void add_bench_serve(CLI::App& app, int& exit_code);

}  // namespace tetrad::cli
