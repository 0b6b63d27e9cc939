#pragma once
#include <string>

namespace tetrad::cli {

// The directory of tetrad-tiny: beside the program where it is installed, else in the source tree that it was built from. It may not exist.
std::string default_model_directory();

}  // namespace tetrad::cli
