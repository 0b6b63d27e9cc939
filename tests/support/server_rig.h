#pragma once
// A service without a network and without a model: tetrad-tiny's tokenizer and template over a backend that follows a script.
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine_loop.h"
#include "server/router.h"
#include "support/engine_rig.h"

namespace tetrad::testing {

struct ServerRigOptions {
  ScriptedBackend::Sizes sizes{.vocab_size = 4096, .max_positions = 4096, .num_slots = 8, .num_pages = 1024, .max_rows = 64};
  EngineOptions engine = {};
  std::vector<std::string> keys = {};
  std::vector<std::string> names = {"test-model", "alias/with-slash"};
  std::vector<std::string> allowed_origins = {};
  int queue_full_status = 503;
  std::size_t replay_bytes = 1 << 20;
};

class ServerRig {
 public:
  explicit ServerRig(ScriptedBackend::Script script, ServerRigOptions options = {}, bool ready = true);
  ~ServerRig();

  // Through screen() and handle(), as a connection would; a pending reply is read to its end.
  HttpResponse call(std::string_view method, std::string path, std::string body = {}, Headers headers = {});
  // The same, but a pending reply is left as it is.
  Reply start(std::string_view method, std::string path, std::string body = {}, Headers headers = {});
  static HttpResponse finish(Reply reply);

  static const Tokenizer& tokenizer();

  ServerState state;
  ServerMetrics metrics;
  RequestJournal journal;
  StatsSampler sampler;
  ReplayMap replay;
  Router router;
  ScriptedBackend backend;
  StatePool pool;
  ChatTemplate chat_template;
  std::optional<EngineLoop> engine;
  std::vector<std::string> logged;
};

// Answers every prompt that ends like a turn to answer with this text, then with <|im_end|>.
ScriptedBackend::Script answering(std::string text);
ScriptedBackend::Script answering_ids(std::vector<int> answer);  // the same for tokens

}  // namespace tetrad::testing
