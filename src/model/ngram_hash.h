#pragma once
// Which rows of an n-gram table a token reads: an exact integer hash of the token and of the tokens before it, cut at end-of-text.
//   x_n   = (c0*m0) ^ (c1*m1) ^ ... ^ (c(n-1)*m(n-1))            for n = 2 .. ngram_size; c0 the token, ci the one i back
//   row_j = x_n mod size_j + offset_j                            for the heads j of group n
#include <cstdint>
#include <span>
#include <vector>

#include "model/config.h"

namespace tetrad {

struct NgramHash {
  std::vector<std::int64_t> multipliers;   // [ngram_size], odd
  std::vector<std::int64_t> head_sizes;    // [NG], distinct primes
  std::vector<std::int64_t> head_offsets;  // [NG], exclusive prefix sums of the sizes
  std::int64_t padded_rows = 0;            // [NGVOC] of the stored table; the rows past the sum of sizes are never addressed
};

// ple_index: rank of the layer within Config::ple_layers; each has multipliers and primes of its own.
NgramHash make_ngram_hash(const Config& config, int ple_index);

// context[i] = the id i tokens back, already cut at end-of-text ([ngram_size]). Writes the [NG] row ids in head order.
void ngram_row_ids(const NgramHash& hash, int heads_per_ngram, std::span<const int> context, std::span<std::int64_t> rows);

// Applies the cut. history: the ngram_size-1 ids before the token, oldest first (end-of-text where the sequence had not begun).
// Once a previous id is end-of-text, it and all older ones read as end-of-text; the token itself does not cut its own context.
void ngram_context(int token, std::span<const int> history, int eos, std::span<int> context);

}  // namespace tetrad
