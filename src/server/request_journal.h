#pragma once
// What happened to requests for text: their start, end or failure with raw counts and unrounded seconds, for logs and for the status page.
// Never what they say: no prompt, no answer, no key, and no message that quotes one.
#include <chrono>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine_events.h"
#include "server/api_error.h"
#include "server/http_message.h"

namespace tetrad {

// Which request this is about.
struct RequestTrace {
  std::string id, route, model;
  std::string trace_parent;  // of the client's tracing, "00-<32 hex>-<16 hex>-<2 hex>"; "" without a well-formed one
  bool stream = false;
};
RequestTrace trace_of(const HttpRequest& request, std::string model, bool stream);

// One prompt of a request; those of many prompts have an entry for each.
struct JournalEntry {
  RequestTrace trace;
  int prompt = 0, num_prompts = 1;
  std::chrono::system_clock::time_point started;
  int max_tokens = 0, num_choices = 1;  // max_tokens 0: not stated
  RequestUsage usage;
  RequestTimings timings;
  std::vector<std::string> finish_reasons;  // of the choices: "stop", "length", "abort" (the client left, or the server stopped), ...
  std::string error;                        // a code; "" if it did not fail
};

class RequestJournal {
 public:
  using Line = std::function<void(const std::string&)>;

  // Where events go besides recent(), a line each, without its end; set before the first request, called by one thread at a time.
  void write_json_to(Line line) { json_ = std::move(line); }
  void write_text_to(Line line) { text_ = std::move(line); }

  void started(const JournalEntry& entry);
  void ended(const JournalEntry& entry);                                // done, or failed if it has an error
  void refused(const RequestTrace& trace, const ApiError& error);       // before it started
  std::vector<JournalEntry> recent(std::size_t at_most = kKept) const;  // that ended, the newest first

  static constexpr std::size_t kKept = 50;

 private:
  mutable std::mutex mutex_;
  Line json_, text_;
  std::deque<JournalEntry> ended_;
};

}  // namespace tetrad
