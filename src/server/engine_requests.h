#pragma once
// From a request of a client to what the engine is given, with every check that can refuse it: for the routes that run it and for those
// that only show it, so that both say the same. All throw RequestError or InputError.
#include <vector>

#include "server/chat_prompt.h"
#include "server/completion_request.h"
#include "server/http_errors.h"
#include "server/service.h"

namespace tetrad {

struct ChatWork {
  EngineRequest engine;
  ChatPrompt prompt;      // its ids are the engine's
  bool is_bound = false;  // answer_constraint() is among the constraints
};
ChatWork chat_work(const Service& service, const ChatRequest& chat, ApiShape shape, ReplayCount count = ReplayCount::kQuiet);

std::vector<EngineRequest> completion_work(const Service& service, const CompletionRequest& completion);  // one for each prompt

}  // namespace tetrad
