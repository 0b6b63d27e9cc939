#pragma once
// Binds the tensors of a checkpoint to the fields of ModelWeights through the weights table. Every tensor is consumed, or recognised as a
// part that is not used (MTP, vision), or on the short ignore list; anything else is refused.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "io/checkpoint.h"
#include "model/config.h"
#include "model/weights.h"

namespace tetrad {

// Bytes bound so far, bytes of all tensors, and what is being bound ("layer 3"). Called from the loading thread.
using LoadProgress = std::function<void(std::size_t done, std::size_t total, std::string_view what)>;

// What one tensor name of a checkpoint belongs to.
enum class TensorGroup { kText, kMtp, kVision, kIgnored };
TensorGroup tensor_group(std::string_view name);

struct WeightsReport {
  std::vector<std::string> missing;  // "model...up_proj.weight BF16 [3, 4]"
  std::vector<std::string> wrong;    // shape, type or value: "NAME (file): expected ..., got ..."
  std::vector<std::string> extra;    // "NAME (file) BF16 [3, 4]"
  std::vector<std::string> notes;    // accepted, but worth saying
  bool ok() const { return missing.empty() && wrong.empty() && extra.empty(); }
  std::string message(std::string_view where) const;  // all of it as one error text; each list is cut at 50 lines with a count
};

// Binds what can be bound and reports the rest; never throws for a fault of the checkpoint.
ModelWeights bind_weights(std::shared_ptr<const Checkpoint> checkpoint, const Config& config, WeightsReport& report,
                          const LoadProgress& progress = {});

// As above; throws one LoadError that lists every missing, wrong and extra tensor.
ModelWeights load_weights(std::shared_ptr<const Checkpoint> checkpoint, const Config& config, const LoadProgress& progress = {});

}  // namespace tetrad
