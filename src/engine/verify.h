#pragma once
// Replays the reference outputs that lie beside a checkpoint and judges this engine by the reference's own spread (docs/testing.md).
#include <filesystem>
#include <string>
#include <vector>

#include "engine/compare.h"
#include "engine/stepper.h"

namespace tetrad {

struct VerifyRow {
  int golden_case = -1;
  std::string stage;  // "logits", "decode_logits", "layers.2.attn.out"
  Distance error;     // this engine against the reference's bf16 CPU run
  double regret = 0;  // logits only
  // What is judged, and by what: logits, the worst ratio of (regret, mean, p99) to its tolerance, against 1; stages of the free run, the
  // worst row's relative L2; forced stages, the worse ratio of that and of the share of unequal elements, against 1; ids and sets, rows
  // that differ without an excuse, against 0.
  double error_measure = 0;
  double tolerance = 0;
  double reference_spread = 0;  // the same measure between the reference's own runs
  std::int64_t row_size = 1;
  bool pass = false;
  std::string note;  // "bits equal", "ids equal", what an exact stage got wrong
};

struct VerifyReport {
  std::vector<VerifyRow> rows;
  bool passed() const;  // every row, and stages among them: logits alone let a fault hide behind the reference's spread
  bool compared_stages() const;
  std::string table() const;  // one line a row: worst error, its coordinate, the reference's spread, pass or FAIL
};

// Every case of `golden_file` (tests/goldens/README.md): one-shot prefill, decode from the cache, and, for the case with stages, every
// stage twice: running free, and forced, where every recorded stage goes on from the reference's values, so that each is judged alone.
// `pool` must have a free slot. Throws LoadError for a damaged file, one whose recorded runs lie too far apart among them.
VerifyReport verify_goldens(StatePool& pool, const std::filesystem::path& golden_file);

}  // namespace tetrad
