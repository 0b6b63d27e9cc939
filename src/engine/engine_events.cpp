#include "engine/engine_events.h"

#include "engine/philox.h"
#include "engine/sequence_state.h"

namespace tetrad {

std::uint64_t choice_seed(std::uint64_t seed, int choice) {
  if (choice == 0) return seed;
  const auto words =
      philox4x32({static_cast<std::uint32_t>(choice), 0, 0, 1}, {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
  return (static_cast<std::uint64_t>(words[0]) << 32) | words[1];
}

std::string_view engine_error_name(EngineErrorKind kind) {
  switch (kind) {
    case EngineErrorKind::kInput: return "input";
    case EngineErrorKind::kPromptTooLong: return "prompt_too_long";
    case EngineErrorKind::kNeverFits: return "never_fits";
    case EngineErrorKind::kQueueFull: return "queue_full";
    case EngineErrorKind::kStopping: return "stopping";
    case EngineErrorKind::kQueueTimeout: return "queue_timeout";
    case EngineErrorKind::kSlowConsumer: return "slow_consumer";
    case EngineErrorKind::kNumeric: return "numeric";
    case EngineErrorKind::kCapacity: return "capacity";
    case EngineErrorKind::kInternal: return "internal";
  }
  fail<InternalError>("engine error {} has no name", static_cast<int>(kind));
}

EngineErrorKind kind_of(const std::exception& error) {
  if (dynamic_cast<const CapacityError*>(&error) != nullptr) return EngineErrorKind::kCapacity;
  if (dynamic_cast<const NumericError*>(&error) != nullptr) return EngineErrorKind::kNumeric;
  if (dynamic_cast<const InputError*>(&error) != nullptr) return EngineErrorKind::kInput;
  return EngineErrorKind::kInternal;
}

void check_room(const EngineRequest& request, int context_tokens) {
  const GenerationRequest& generation = request.generation;
  const auto prompt = static_cast<std::int64_t>(generation.prompt_ids.size());
  const std::int64_t context = context_length(generation, context_tokens), total = prompt + generation.max_tokens;
  if (request.take_what_fits || total <= context) return;
  const std::string advice =
      prompt < context ? fmt::format("ask for {} at most or shorten the prompt", context - prompt) : "shorten the prompt";
  throw EngineRefusal(EngineErrorKind::kPromptTooLong,
                      fmt::format("the prompt has {} tokens and max_tokens is {}, together {}: the context holds {}; {}", prompt,
                                  generation.max_tokens, total, context, advice));
}

bool is_terminal(const EngineEvent& event) {
  return std::holds_alternative<FinishedEvent>(event) || std::holds_alternative<FailedEvent>(event);
}

}  // namespace tetrad
