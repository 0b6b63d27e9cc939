#pragma once
// What is checked once a grammar's code is complete.
#include "grammar/grammar.h"

namespace tetrad::grammar {

// Turns code from which no text leads to an end into kFail, so that an answer never runs into a place it cannot leave. Throws GrammarError
// if the start is such code.
void remove_dead_code(Grammar& grammar);

// Throws GrammarError if a rule can call itself before a byte has been read.
void check_recursion(const Grammar& grammar);

}  // namespace tetrad::grammar
