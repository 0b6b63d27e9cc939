#include "cli/default_model.h"

#include <filesystem>
#include <system_error>

namespace tetrad::cli {

std::string default_model_directory() {
  namespace fs = std::filesystem;
  std::error_code code;
  const fs::path folder = fs::read_symlink("/proc/self/exe", code).parent_path();
  const auto place = [&](const char* way) { return (folder / way).lexically_normal(); };
  // The programs of the tests lie one folder below the root of the build tree.
  for (const fs::path& model : {place(TETRAD_INSTALLED_MODEL), place(TETRAD_BUILT_MODEL), place("../" TETRAD_BUILT_MODEL)})
    if (fs::is_directory(model, code)) return model.string();
  return place(TETRAD_INSTALLED_MODEL).string();
}

}  // namespace tetrad::cli
