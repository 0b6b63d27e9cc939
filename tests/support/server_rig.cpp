#include "support/server_rig.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>

namespace tetrad::testing {

const Tokenizer& ServerRig::tokenizer() {
  static const Tokenizer loaded = Tokenizer::load(TETRAD_MODELS "/tetrad-tiny/tokenizer.json");
  return loaded;
}

ServerRig::ServerRig(ScriptedBackend::Script script, ServerRigOptions options, bool ready)
    : replay(options.replay_bytes),
      router(state, metrics, ApiKeys(options.keys), CorsPolicy(options.allowed_origins)),
      backend(options.sizes, std::move(script)),
      pool(backend),
      chat_template(ChatTemplate::load(TETRAD_MODELS "/tetrad-tiny")),
      engine(std::in_place, pool, &tokenizer(), options.engine) {
  auto service = std::make_shared<Service>();
  service->settings.model_names = options.names;
  service->settings.queue_full_status = options.queue_full_status;
  service->created = 1700000000;
  service->generation.stop_ids = {tokenizer().added_token("<|im_end|>").value()};
  service->vocab_size = options.sizes.vocab_size;
  service->page_tokens = backend.state_layout().page_tokens;
  service->context_tokens = engine->context_tokens();
  service->max_prompt_bytes = longest_prompt_bytes(tokenizer(), service->context_tokens);
  service->tokenizer_info["eos_token"] = "<|im_end|>";
  service->tokenizer = &tokenizer();
  service->thinking = thinking_tokens(tokenizer(), service->settings.reasoning_budget_message);
  service->grammars = std::make_shared<OutputGrammars>(tokenizer(), service->vocab_size);
  service->chat_template = &chat_template;
  service->engine = &*engine;
  service->metrics = &metrics;
  service->journal = &journal;
  service->sampler = &sampler;
  service->replay = &replay;
  service->log = [this](std::string_view line) { logged.emplace_back(line); };
  router.set_service(std::move(service));
  if (ready) state.set_ready();
}

ServerRig::~ServerRig() { engine->stop(); }

Reply ServerRig::start(std::string_view method, std::string path, std::string body, Headers headers) {
  HttpRequest request;
  request.method = method;
  const std::size_t question = path.find('?');
  if (question != std::string::npos) request.query = path.substr(question + 1);
  request.path = path.substr(0, question);
  request.headers = std::move(headers);
  if (method == "POST" && request.header("content-type").empty()) request.headers.emplace_back("content-type", "application/json");
  request.body = std::move(body);
  request.id = "req-test";
  if (const auto refusal = router.screen(request)) return *refusal;
  return router.handle(request);
}

HttpResponse ServerRig::finish(Reply reply) {
  if (auto* response = std::get_if<HttpResponse>(&reply)) return *response;
  PendingReply& pending = *std::get<std::unique_ptr<PendingReply>>(reply);
  std::mutex mutex;
  std::condition_variable changed;
  bool rung = true;
  pending.on_progress([&] {
    const std::lock_guard lock(mutex);
    rung = true;
    changed.notify_one();
  });
  HttpResponse head = pending.streams() ? pending.response() : HttpResponse{};
  std::string body;
  while (!pending.done()) {
    std::unique_lock lock(mutex);
    if (!changed.wait_for(lock, std::chrono::seconds(60), [&] { return rung; })) return {.status = 599, .body = "no end"};
    rung = false;
    lock.unlock();
    for (std::string piece = pending.take();; piece = pending.take()) {
      body += piece;
      if (piece.empty() || pending.done()) break;
    }
  }
  pending.on_progress({});
  if (!pending.streams()) return pending.response();
  head.body = std::move(body);
  return head;
}

HttpResponse ServerRig::call(std::string_view method, std::string path, std::string body, Headers headers) {
  return finish(start(method, std::move(path), std::move(body), std::move(headers)));
}

ScriptedBackend::Script answering(std::string text) { return answering_ids(ServerRig::tokenizer().encode(text)); }

ScriptedBackend::Script answering_ids(std::vector<int> answer) {
  const Tokenizer& tokenizer = ServerRig::tokenizer();
  const int start = tokenizer.added_token("<|im_start|>").value(), end = tokenizer.added_token("<|im_end|>").value();
  return [=](std::span<const int> history, std::span<float> logits) {
    // The answer so far is what stands behind the head of the last turn; its length is found by matching the answer's beginning.
    const auto turn = std::find(history.rbegin(), history.rend(), start);
    const auto behind = static_cast<std::size_t>(turn - history.rbegin());
    std::size_t given = std::min(behind, answer.size());
    while (given > 0 && !std::equal(answer.begin(), answer.begin() + static_cast<std::ptrdiff_t>(given),
                                    history.end() - static_cast<std::ptrdiff_t>(given)))
      --given;
    logits[static_cast<std::size_t>(given < answer.size() ? answer[given] : end)] = 10.0f;
  };
}

}  // namespace tetrad::testing
