#pragma once
// Per-layer n-gram embedding: hashed rows of a table, gated by the streams, with a dilated convolution over time (docs/model.md, "PLE").
#include "cpu/packed_weights.h"
#include "cpu/step_context.h"

namespace tetrad::cpu {

// streams [T, HC*D] in place; updates the convolution window. The n-gram history is read here and moved on by advance_ngram_history().
void ple_layer(const PackedPle& w, int layer, float* streams, StepContext& step);

// Appends the step's token ids to every sequence's n-gram history; once per step, after the last layer.
void advance_ngram_history(StepContext& step);

}  // namespace tetrad::cpu
