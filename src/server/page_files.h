#pragma once
// The files of the page (src/server/page), which the build embeds.
#include <string_view>

namespace tetrad {

struct PageFile {
  std::string_view name;  // "app.js"
  std::string_view text;
};
extern const PageFile kPageFiles[];
extern const int kNumPageFiles;

}  // namespace tetrad
