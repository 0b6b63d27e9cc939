#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <optional>
#include <span>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/model_loading.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "cli/value_checks.h"
#include "engine/stepper.h"
#include "io/safetensors_writer.h"

namespace tetrad::cli {
namespace {

struct LogitsOptions {
  ModelOptions model;
  std::string ids;
  std::optional<std::string> decode_ids = {};
  int chunk = 0;
  std::string out;
};

void check_ids(const std::vector<int>& ids, const char* flag, int vocab_size) {
  for (std::size_t i = 0; i < ids.size(); ++i)
    if (ids[i] >= vocab_size) fail<InputError>("{}: token {} has id {}, outside the vocabulary [0, {})", flag, i, ids[i], vocab_size);
}

// Feeds ids in pieces of at most chunk rows and writes the logits of every row.
void feed(Stepper& stepper, SequenceState& state, std::span<const int> ids, int chunk, SafetensorsWriter& writer) {
  while (!ids.empty()) {
    const auto piece = ids.first(std::min(static_cast<std::size_t>(chunk), ids.size()));
    const StepRequest request{&state, piece, LogitsWanted::kAll};
    const StepOutcome outcome = stepper.run({&request, 1}).front();
    if (outcome.fault)
      fail<NumericError>("layer {}: {} of row {} are not finite", outcome.fault->layer, outcome.fault->what, outcome.fault->row);
    writer.write(std::as_bytes(outcome.logits));
    ids = ids.subspan(piece.size());
  }
}

void write_logits(const LogitsOptions& options) {
  if (options.out.empty() || options.out == "-") fail<InputError>("--out must name a file, got '{}'", options.out);
  const ModelFiles files = load_model_files(options.model);
  const std::vector<int> ids = read_token_ids(options.ids, "--ids");
  const std::vector<int> decode_ids = options.decode_ids ? read_token_ids(*options.decode_ids, "--decode-ids") : std::vector<int>{};
  check_ids(ids, "--ids", files.config.vocab_size);
  check_ids(decode_ids, "--decode-ids", files.config.vocab_size);
  const std::size_t total = ids.size() + decode_ids.size();
  const int max_length = choose_max_length(options.model, files.config, static_cast<int>(total));
  if (total > static_cast<std::size_t>(max_length)) fail<InputError>("{} tokens given, the context holds {}", total, max_length);
  const std::int64_t vocab_size = files.config.vocab_size;
  std::vector<TensorSpec> tensors{{"logits", DType::kF32, {static_cast<std::int64_t>(ids.size()), vocab_size}}};
  if (!decode_ids.empty()) tensors.push_back({"decode_logits", DType::kF32, {static_cast<std::int64_t>(decode_ids.size()), vocab_size}});
  SafetensorsWriter writer(options.out, tensors);

  const std::unique_ptr<Backend> backend = load_backend(options.model, files.config, {.max_length = max_length, .num_slots = 1});
  StatePool pool(*backend);
  Stepper stepper(pool);
  SequenceState state(pool);
  const int chunk = options.chunk > 0 ? std::min(options.chunk, backend->max_rows()) : backend->max_rows();
  feed(stepper, state, ids, chunk, writer);
  feed(stepper, state, decode_ids, 1, writer);
  writer.finish();
  say("{}: logits [{}, {}]{}\n", options.out, ids.size(), vocab_size,
      decode_ids.empty() ? "" : fmt::format(", decode_logits [{}, {}]", decode_ids.size(), vocab_size));
}

}  // namespace

void add_logits(CLI::App& app, int&) {
  const auto options = std::make_shared<LogitsOptions>();
  add_model_options(app, options->model);
  app.add_option("--ids", options->ids, "Token ids: 1,2,3 or a file; - reads standard input")->type_name("LIST_OR_FILE")->required();
  app.add_option("--decode-ids", options->decode_ids, "Ids that follow, fed one a step")->type_name("LIST_OR_FILE");
  app.add_option("--chunk", options->chunk, "Rows of a step at most; 0: as many as it takes")->type_name("N")->check(whole_number(0));
  app.add_option("-o,--out", options->out, "Where logits [T,V] and decode_logits [k,V], float32, are written")
      ->type_name("FILE")
      ->required();
  app.callback([options] { write_logits(*options); });
}

}  // namespace tetrad::cli
