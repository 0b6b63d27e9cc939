#pragma once
#include <string>

namespace tetrad::cli {

// The directory of tetrad-tiny, found from where the program itself lies: in the tree that it was installed into, else in the source tree
// around its build tree. Where there is none, that of an installed program, which does not exist then.
std::string default_model_directory();

}  // namespace tetrad::cli
