#pragma once
// One function per sub-command: it registers the command's options on `app` and a callback that runs it and sets `exit_code`
// (0, 1 runtime, 2 bad input or checkpoint, 3 a verification failed). Errors are thrown; main prints them.
namespace CLI {
class App;
}

namespace tetrad::cli {

void add_run(CLI::App& app, int& exit_code);
void add_chat(CLI::App& app, int& exit_code);
void add_serve(CLI::App& app, int& exit_code);
void add_inspect(CLI::App& app, int& exit_code);
void add_tokenize(CLI::App& app, int& exit_code);
void add_render(CLI::App& app, int& exit_code);
void add_logits(CLI::App& app, int& exit_code);
void add_verify(CLI::App& app, int& exit_code);
void add_synth(CLI::App& app, int& exit_code);
void add_bench(CLI::App& app, int& exit_code);
void add_reference(CLI::App& app, int& exit_code);

}  // namespace tetrad::cli
