#include "cli/app.h"

int main(int argc, char** argv) { return tetrad::cli::run_command_line(argc, argv); }
