#pragma once
// Between the engine and the network: the events of one HTTP request's prompts become the bytes of its answer.
//
// A streamed answer reads from the engine only what its client takes: what the client leaves unread fills the buffers of its prompts, and a
// full one fails the request (kSlowConsumer). Many prompts are submitted a few at a time.
#include <memory>
#include <string>
#include <vector>

#include "engine/event_buffer.h"
#include "server/http_errors.h"
#include "server/http_message.h"
#include "server/service.h"

namespace tetrad {

class GenerationReply final : public PendingReply {
 public:
  struct Setup {
    std::unique_ptr<ResponseBuilder> builder;
    std::vector<EngineRequest> requests;  // one for each prompt
    bool stream = false;
    ApiShape shape = ApiShape::kOpenAi;
    std::string request_id;
    RequestTrace trace = {};
  };

  // Submits the first prompts: throws EngineRefusal, and nothing runs then.
  GenerationReply(std::shared_ptr<const Service> service, Setup setup);
  GenerationReply(const GenerationReply&) = delete;
  GenerationReply& operator=(const GenerationReply&) = delete;
  ~GenerationReply() override;

  void on_progress(std::function<void()> wake) override { waker_->listen(std::move(wake)); }
  bool streams() const override { return setup_.stream; }
  HttpResponse response() override;
  std::string take() override;
  bool done() const override { return done_; }
  std::string keepalive() const override;
  void abandon() override;

 private:
  struct Part {
    std::shared_ptr<EventBuffer> events;
    RequestHandle handle;
    JournalEntry entry;
    std::chrono::steady_clock::time_point submitted;
    bool ended = false;
  };

  void submit(std::size_t prompt);
  void submit_more();
  bool drain(std::size_t prompt, std::string& out);
  void append_failure(const ApiError& error, std::string& out);
  void record(const EngineEvent& event, std::size_t prompt);
  void give_up(Part& part);

  std::shared_ptr<const Service> service_;
  Setup setup_;
  std::shared_ptr<Waker> waker_;
  std::vector<Part> parts_;  // of the prompts submitted so far
  std::size_t running_ = 0;
  bool done_ = false, cancelled_ = false, sent_any_ = false;
  std::unique_ptr<ApiError> refused_;  // a later prompt was not taken
};

}  // namespace tetrad
