#pragma once
// What is said about an answer, on stderr.
#include "engine/generator.h"

namespace tetrad::cli {

// "prompt 21 tokens in 0.012 s (1750/s), first token after 0.013 s, answer 13 tokens in 0.020 s (650/s), stop"
std::string stats_line(const GenerationResult& result);
void print_stats(const GenerationResult& result);

// One line per token: id, text, log-probability, then the best candidates.
void print_logprobs(const GenerationResult& result, const Tokenizer& tokenizer);

}  // namespace tetrad::cli
