#pragma once
// The command line as a whole: every sub-command, help, version, and the one place where errors become messages and exit codes.

namespace tetrad::cli {

// Exit codes: 0, 1 runtime, 2 bad input, usage or checkpoint, 3 a verification failed.
int run_command_line(int argc, const char* const* argv);

}  // namespace tetrad::cli
