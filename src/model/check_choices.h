#pragma once
// The contract of Backend::choose, checked on the host; the same for every backend.
#include "model/token_choice.h"

namespace tetrad {

// num_rows: of logits that the last step left on the device. Throws InternalError.
void check_choices(const ChoiceBatch& batch, std::size_t num_results, int num_rows, int vocab_size);

}  // namespace tetrad
