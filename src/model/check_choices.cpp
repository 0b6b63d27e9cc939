#include "model/check_choices.h"

#include <cmath>

#include "base/error.h"

namespace tetrad {

void check_choices(const ChoiceBatch& batch, std::size_t num_results, int num_rows, int vocab_size) {
  TETRAD_CHECK(num_results == batch.choices.size(), "{} results for {} choices", num_results, batch.choices.size());
  TETRAD_CHECK(batch.limit >= 0 && batch.limit <= vocab_size, "limit {} of {} ids", batch.limit, vocab_size);
  int last = -1;
  for (const int id : batch.holes) {
    TETRAD_CHECK(id > last && id < batch.limit, "hole {} after {}, limit {}", id, last, batch.limit);
    last = id;
  }
  for (const TokenChoice& choice : batch.choices) {
    TETRAD_CHECK(choice.row >= 0 && choice.row < num_rows, "row {} of {} rows of logits", choice.row, num_rows);
    TETRAD_CHECK(choice.forced < vocab_size, "forced id {} of {}", choice.forced, vocab_size);
    TETRAD_CHECK(choice.inverse_temperature >= 0 && std::isfinite(choice.inverse_temperature) && choice.top_k >= 0,
                 "inverse temperature {}, top-k {}", choice.inverse_temperature, choice.top_k);
    TETRAD_CHECK(choice.mask.empty() || choice.mask.size() == (static_cast<std::size_t>(vocab_size) + 31) / 32,
                 "{} words of a mask of {} ids", choice.mask.size(), vocab_size);
    TETRAD_CHECK(choice.adjustments.size() <= static_cast<std::size_t>(vocab_size), "{} adjustments of {} ids", choice.adjustments.size(),
                 vocab_size);
    for (const TokenAdjustment& adjustment : choice.adjustments)
      TETRAD_CHECK(adjustment.id >= 0 && adjustment.id < vocab_size, "adjustment of id {} of {}", adjustment.id, vocab_size);
  }
}

}  // namespace tetrad
