#include "cli/default_model.h"

#include <filesystem>
#include <system_error>

namespace tetrad::cli {

std::string default_model_directory() {
  namespace fs = std::filesystem;
  std::error_code code;
  const fs::path program = fs::read_symlink("/proc/self/exe", code);
  if (!code) {
    const fs::path installed = (program.parent_path() / TETRAD_INSTALLED_MODEL).lexically_normal();
    if (fs::is_directory(installed, code)) return installed.string();
  }
  return TETRAD_SOURCE_MODEL;
}

}  // namespace tetrad::cli
