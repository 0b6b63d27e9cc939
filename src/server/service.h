#pragma once
// What handlers work with: the model that is served, and the settings of serving it. Read by many threads, changed by none.
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "engine/engine_loop.h"
#include "engine/generation_config.h"
#include "model/backend.h"
#include "server/chat_request.h"
#include "server/http_message.h"
#include "server/replay_map.h"
#include "server/request_journal.h"
#include "server/response_json.h"
#include "server/server_metrics.h"
#include "server/stats_sampler.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace tetrad {

inline constexpr std::string_view kThinkingSpent = "\n\nThere is no room left to think; I answer with what I have.";

// The tokens that a budget of thinking works with.
struct ThinkingTokens {
  int start_id = 0, end_id = 0;
  std::vector<int> end_phrase;  // the message, the tag and what separates it from the answer
};

struct ServiceSettings {
  std::vector<std::string> model_names;  // that requests may use; the first is the one reported; "*" accepts any
  int max_choices = 16;
  int default_max_tokens = 0;  // of a request that states none; 0: what is left of the context
  double queue_timeout = 0;    // seconds; 0: never
  bool merge_system_messages = true;
  bool strict_fields = false;
  ReasoningFields reasoning_fields = ReasoningFields::kBoth;
  int queue_full_status = 503;                           // or 429
  int reasoning_budget = kNoThinkingBudget;              // tokens of thinking, of a request that states none
  std::string reasoning_budget_message{kThinkingSpent};  // what thinking ends with when the budget is spent
  std::size_t stream_buffer_events = 512;                // of one answer, not yet sent: beyond that its client is too slow
};

struct Service {
  ServiceSettings settings;
  std::int64_t created = 0;          // seconds since 1970, when the model was ready
  GenerationConfig generation = {};  // of the checkpoint
  int vocab_size = 0, page_tokens = 0;
  int context_tokens = 0;                      // of prompt and answer together
  std::size_t max_prompt_bytes = 0;            // more text than that cannot fit the context, whatever it says; 0: unknown
  nlohmann::ordered_json tokenizer_info = {};  // what GET /tokenizer_info answers
  const Tokenizer* tokenizer = nullptr;
  std::shared_ptr<OutputGrammars> grammars = {};  // set wherever requests are served
  std::optional<ThinkingTokens> thinking = {};    // nothing: the tokenizer has no tags for it
  const ChatTemplate* chat_template = nullptr;
  EngineLoop* engine = nullptr;
  ServerMetrics* metrics = nullptr;
  RequestJournal* journal = nullptr;
  const StatsSampler* sampler = nullptr;  // may be null, as the journal and the map
  ReplayMap* replay = nullptr;
  std::string device = {};  // "cpu", "cuda:0"
  MemoryPlan memory = {};
  std::function<void(std::string_view)> log = {};  // one line, without its end; may be empty

  RequestContext request_context() const;  // with a fresh seed
  // The name to report. Throws RequestError 404 for a name that is not served; an empty one is the first.
  std::string resolve_model(const std::string& asked) const;
  // api_error() with the status that this server gives to a full queue.
  ApiError error_of(const std::exception& error, const std::string& request_id) const;
  // Token ids of a prompt. Text that is hopelessly long is refused before it costs time (RequestError context_length_exceeded).
  // `field` of the request is where it comes from.
  std::vector<int> encode(const std::string& prompt, std::string_view field) const;
  void check_prompt_bytes(std::size_t bytes, std::string_view field) const;  // that refusal alone
};

// Throws InputError for a message that cannot end the thinking.
std::optional<ThinkingTokens> thinking_tokens(const Tokenizer& tokenizer, const std::string& message);
std::size_t longest_prompt_bytes(const Tokenizer& tokenizer, int context_tokens);  // for Service::max_prompt_bytes

}  // namespace tetrad
