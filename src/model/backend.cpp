#include "model/backend.h"

#include <fmt/format.h>

#include "base/error.h"

namespace tetrad {

std::size_t MemoryPlan::total_bytes() const {
  std::size_t total = 0;
  for (const Row& row : rows) total += row.bytes;
  return total;
}

std::string MemoryPlan::table() const {
  std::string text = fmt::format("{:<10} {:<34} {:>12}\n", "arena", "what", "MiB");
  for (const Row& row : rows)
    text += fmt::format("{:<10} {:<34} {:>12.2f}\n", row.arena, row.name, static_cast<double>(row.bytes) / (1 << 20));
  return text + fmt::format("{:<10} {:<34} {:>12.2f}\n", "total", "", static_cast<double>(total_bytes()) / (1 << 20));
}

void Backend::choose(const ChoiceBatch&, std::span<ChosenToken>) {
  fail<InternalError>("backend {} keeps no logits to choose from", name());
}

void Backend::read_logits(int, std::span<float>) { fail<InternalError>("backend {} keeps no logits to read", name()); }

}  // namespace tetrad
