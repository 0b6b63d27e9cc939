#pragma once
// The contract of Backend::step, checked on the host before anything changes; the same for every backend.
#include <cstddef>
#include <cstdint>
#include <functional>

#include "model/backend.h"

namespace tetrad {

// Throws what Backend::step promises. length_of: tokens in a slot, called for slots in range.
void check_batch(const StepBatch& batch, std::size_t num_logits, const Backend& backend, const std::function<std::int64_t(int)>& length_of);

// Pages for the tokens asked for (0: the model's positions), and one partly filled page more for every slot.
int pages_for(const Config& config, const BackendOptions& options);

// A budget of more tokens than the backend can hold selects all of them, as a budget of just that many does, and asks for no more scratch.
Config with_budget_within(Config config, const BackendOptions& options);

// Every page may belong to one sequence: scratch reaches as far.
int longest_sequence(const Config& config, int num_pages);

}  // namespace tetrad
