// The engine with its thread: queues, cancellation, draining, stopping, and readers of every kind.
#include "engine/engine_loop.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <thread>

#include "engine/generator.h"
#include "support/engine_rig.h"

namespace tetrad::engine_loop_test {
namespace {

using std::chrono::milliseconds;
using testing::canned_script;
using testing::hashed_script;
using testing::recorded;
using testing::RecordingSink;
using testing::ScriptedBackend;

constexpr int kVocab = 64, kStop = 63;

const Tokenizer& tokenizer() {
  static const Tokenizer loaded = Tokenizer::load(TETRAD_MODELS "/tetrad-tiny/tokenizer.json");
  return loaded;
}

EngineRequest request_of(std::vector<int> prompt, int max_tokens = 0) {
  EngineRequest request;
  request.generation.prompt_ids = std::move(prompt);
  request.generation.sampling.temperature = 0;
  request.generation.stop_ids = {kStop};
  request.generation.max_tokens = max_tokens;
  return request;
}

EngineRequest endless(std::vector<int> prompt) {
  EngineRequest request = request_of(std::move(prompt));
  request.generation.stop_ids = {};
  return request;
}

struct Rig {
  explicit Rig(ScriptedBackend::Sizes sizes = {}, EngineOptions options = {}, ScriptedBackend::Script script = hashed_script(kStop),
               const Tokenizer* text = nullptr)
      : backend(sizes, std::move(script)), pool(backend), loop(std::in_place, pool, text, options) {}
  std::shared_ptr<EventBuffer> submit(EngineRequest request, std::size_t capacity = 100000, RequestHandle* handle = nullptr) {
    auto buffer = std::make_shared<EventBuffer>(capacity);
    const RequestHandle given = loop->submit(std::move(request), buffer);
    if (handle != nullptr) *handle = given;
    return buffer;
  }
  std::optional<EngineErrorKind> refusal(EngineRequest request) {
    try {
      submit(std::move(request));
    } catch (const EngineRefusal& refused) {
      return refused.kind();
    }
    return std::nullopt;
  }
  void expect_all_free() {
    loop.reset();
    EXPECT_EQ(pool.free_slots(), backend.num_slots());
    EXPECT_EQ(pool.free_pages(), backend.num_pages());
  }
  ScriptedBackend backend;
  StatePool pool;
  std::optional<EngineLoop> loop;
};

// Steps wait until the gate is opened: tests decide what happens during a step.
struct Gate {
  void pass() {
    std::unique_lock lock(mutex);
    ++arrivals;
    changed.notify_all();
    changed.wait(lock, [&] { return open; });
  }
  void wait_for_arrival() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return arrivals > 0; });
  }
  void set_open() {
    const std::lock_guard lock(mutex);
    open = true;
    changed.notify_all();
  }
  std::mutex mutex;
  std::condition_variable changed;
  int arrivals = 0;
  bool open = false;
};

constexpr ScriptedBackend::Sizes kSizes{.vocab_size = kVocab};

TEST(engine_loop, text_streams_as_a_generator_alone_gives_it) {
  const std::vector<int> prompt = tokenizer().encode("A question?"), answer = tokenizer().encode("An answer, caf\xC3\xA9. STOP and more");
  Rig rig({.vocab_size = 4096}, {}, canned_script({{prompt, answer}}, 0), &tokenizer());
  EngineRequest request = request_of(prompt);
  request.generation.stop_strings = {"STOP"};
  request.generation.sampling.logprobs = 1;
  const RecordingSink sink = recorded(*rig.submit(request));
  EXPECT_EQ(sink.choices[0].text, "An answer, caf\xC3\xA9. ");
  EXPECT_EQ(sink.choices[0].finish, FinishReason::kStop);
  EXPECT_EQ(sink.choices[0].tokens[0].top.size(), 1u);
  rig.expect_all_free();
}

TEST(engine_loop, cancelling_gives_the_text_that_was_held_back) {
  Gate gate;
  const std::vector<int> prompt = tokenizer().encode("Q"), answer = tokenizer().encode("STO");
  const int after = tokenizer().encode("x")[0];
  Rig rig({.vocab_size = 4096}, {}, canned_script({{prompt, answer}}, after), &tokenizer());
  rig.backend.before_step = [&](const StepBatch& batch) {
    if (batch.token_ids.back() == answer.back()) gate.pass();
  };
  EngineRequest request = endless(prompt);
  request.generation.stop_strings = {"STOP"};
  RequestHandle handle;
  const auto buffer = rig.submit(request, 1000, &handle);
  gate.wait_for_arrival();
  rig.loop->cancel(handle);
  gate.set_open();
  const RecordingSink sink = recorded(*buffer);
  EXPECT_EQ(sink.choices[0].finish, FinishReason::kCancelled);
  EXPECT_TRUE(sink.choices[0].text.starts_with("STO")) << sink.choices[0].text;
  rig.expect_all_free();
}

TEST(engine_loop, many_threads_submit_and_cancel) {
  Rig rig({.vocab_size = kVocab, .num_slots = 6, .num_pages = 40}, {.snapshot_slots = 2, .host_cache_bytes = 4000, .max_waiting = 0});
  constexpr int kThreads = 4, kRequests = 30;
  std::atomic<int> terminals = 0, finished = 0;
  std::vector<std::thread> clients;
  for (int t = 0; t < kThreads; ++t)
    clients.emplace_back([&, t] {
      for (int i = 0; i < kRequests; ++i) {
        RequestHandle handle;
        EngineRequest request = request_of({t, i % 7, 3, 4, 5, 6, 7, 8, 9}, 20);
        request.num_choices = 1 + i % 3;
        const auto buffer = rig.submit(request, 1000, &handle);
        if (i % 5 == 0) rig.loop->cancel(handle);
        const RecordingSink sink = recorded(*buffer, request.num_choices);
        terminals += sink.terminals;
        finished += sink.finished ? 1 : 0;
        (void)rig.loop->stats();
      }
    });
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(terminals, kThreads * kRequests);
  EXPECT_EQ(finished, kThreads * kRequests);
  EXPECT_TRUE(rig.loop->drain(milliseconds(10000)));
  const EngineStats stats = rig.loop->stats();
  EXPECT_EQ(stats.submitted, static_cast<std::uint64_t>(kThreads * kRequests));
  EXPECT_EQ(stats.requests_running + stats.requests_waiting, 0);
  rig.expect_all_free();
}

TEST(engine_loop, a_reader_that_stops_reading_loses_its_own_request_only) {
  Rig rig(kSizes);
  const auto slow = rig.submit(endless({1, 2}), 5);
  const RecordingSink good = recorded(*rig.submit(request_of({3, 4}, 40)));
  EXPECT_TRUE(good.finished);
  const RecordingSink lost = recorded(*slow);
  ASSERT_TRUE(lost.failed);
  EXPECT_EQ(lost.failed->kind, EngineErrorKind::kSlowConsumer);
  EXPECT_EQ(lost.events, 6) << "what there was room for, and the end";
  rig.expect_all_free();
}

TEST(engine_loop, the_queue_is_bounded) {
  Gate gate;
  Rig rig({.vocab_size = kVocab, .num_slots = 1}, {.max_waiting = 3, .max_waiting_tokens = 20});
  rig.backend.before_step = [&](const StepBatch&) { gate.pass(); };
  std::vector<std::shared_ptr<EventBuffer>> taken{rig.submit(request_of({1}, 3))};
  gate.wait_for_arrival();
  // The first has begun its step: it no longer waits.
  taken.push_back(rig.submit(request_of({2}, 3)));
  EXPECT_EQ(rig.refusal(request_of(std::vector<int>(30, 1))), EngineErrorKind::kQueueFull) << "tokens";
  taken.push_back(rig.submit(request_of({3}, 3)));
  taken.push_back(rig.submit(request_of({4}, 3)));
  EXPECT_EQ(rig.refusal(request_of({5})), EngineErrorKind::kQueueFull);
  EXPECT_EQ(rig.refusal(request_of({})), EngineErrorKind::kInput);
  gate.set_open();
  for (const auto& buffer : taken) EXPECT_TRUE(recorded(*buffer).finished);
  EXPECT_TRUE(rig.loop->drain(milliseconds(10000)));
  const EngineStats stats = rig.loop->stats();
  EXPECT_EQ(stats.refused[static_cast<std::size_t>(EngineErrorKind::kQueueFull)], 2u);
  EXPECT_EQ(stats.refused[static_cast<std::size_t>(EngineErrorKind::kInput)], 1u);
  rig.expect_all_free();
}

TEST(engine_loop, draining_takes_nothing_new_and_lets_the_rest_end) {
  Gate gate;
  Rig rig(kSizes);
  rig.backend.before_step = [&](const StepBatch&) { gate.pass(); };
  const auto running = rig.submit(request_of({1}, 5));
  gate.wait_for_arrival();
  const auto waiting = rig.submit(request_of({2}, 5));
  EXPECT_FALSE(rig.loop->drain(milliseconds(1)));
  EXPECT_FALSE(rig.loop->accepting());
  EXPECT_EQ(rig.refusal(request_of({3})), EngineErrorKind::kStopping);
  gate.set_open();
  EXPECT_TRUE(rig.loop->drain(milliseconds(10000)));
  EXPECT_TRUE(recorded(*running).finished);
  EXPECT_TRUE(recorded(*waiting).finished);
  rig.expect_all_free();
}

TEST(engine_loop, stopping_ends_every_request_whatever_its_phase) {
  Gate gate;
  Rig rig({.vocab_size = kVocab, .num_slots = 2, .max_rows = 8}, {.snapshot_slots = 0});
  rig.backend.before_step = [&](const StepBatch&) { gate.pass(); };
  std::vector<std::shared_ptr<EventBuffer>> buffers{rig.submit(endless({1}))};
  gate.wait_for_arrival();
  buffers.push_back(rig.submit(endless(std::vector<int>(300, 1))));
  for (int i = 0; i < 5; ++i) buffers.push_back(rig.submit(endless({2})));
  std::thread stopper([&] { rig.loop->stop(); });
  while (rig.loop->accepting()) std::this_thread::yield();
  gate.set_open();
  stopper.join();
  for (const auto& buffer : buffers) {
    const RecordingSink sink = recorded(*buffer);
    ASSERT_TRUE(sink.failed);
    EXPECT_EQ(sink.failed->kind, EngineErrorKind::kStopping);
  }
  EXPECT_EQ(rig.refusal(request_of({3})), EngineErrorKind::kStopping);
  rig.loop->stop();
  rig.loop->cancel({1});
  rig.expect_all_free();
}

TEST(engine_loop, a_sink_may_call_back_and_may_throw) {
  struct Cancelling : EventSink {
    EngineLoop* loop = nullptr;
    std::atomic<std::uint64_t> id = 0;
    std::atomic<int> tokens = 0;
    std::atomic<bool> ended = false;
    bool push(EngineEvent event) override {
      if (std::holds_alternative<TokenEvent>(event) && ++tokens >= 3) loop->cancel({id});
      if (is_terminal(event)) ended = true;
      return true;
    }
  };
  struct Throwing : EventSink {
    bool push(EngineEvent) override { throw std::runtime_error("always"); }
  };
  Rig rig(kSizes);
  auto cancelling = std::make_shared<Cancelling>();
  cancelling->loop = &*rig.loop;
  rig.loop->submit(request_of({5}, 3), std::make_shared<Throwing>());
  cancelling->id = rig.loop->submit(endless({1}), cancelling).id;
  rig.loop->submit(request_of({6}, 3), std::make_shared<Throwing>());
  EXPECT_TRUE(rig.loop->drain(milliseconds(10000)));
  EXPECT_TRUE(cancelling->ended);
  EXPECT_EQ(rig.loop->stats().failed[static_cast<std::size_t>(EngineErrorKind::kInternal)], 2u);
  rig.expect_all_free();
}

TEST(engine_loop, a_device_that_is_gone_ends_requests_instead_of_the_process) {
  Rig rig(kSizes);
  rig.backend.before_step = [](const StepBatch&) { fail<InternalError>("the device is gone"); };
  for (int i = 0; i < 3; ++i) {
    const RecordingSink sink = recorded(*rig.submit(request_of({1}, 3)));
    ASSERT_TRUE(sink.failed);
    EXPECT_EQ(sink.failed->kind, EngineErrorKind::kInternal);
    EXPECT_NE(sink.failed->message.find("gone"), std::string::npos);
  }
  rig.expect_all_free();
}

TEST(event_buffer, holds_so_many_and_always_the_end) {
  int calls = 0;
  EventBuffer buffer(2, [&] { ++calls; });
  EXPECT_FALSE(buffer.try_pop());
  EXPECT_FALSE(buffer.pop(milliseconds(1)));
  EXPECT_TRUE(buffer.push(StartedEvent{}));
  EXPECT_TRUE(buffer.push(TokenEvent{}));
  EXPECT_FALSE(buffer.push(TokenEvent{}));
  EXPECT_TRUE(buffer.push(FailedEvent{}));
  EXPECT_EQ(calls, 3);
  EXPECT_THROW(buffer.push(TokenEvent{}), InternalError);
  EXPECT_TRUE(std::holds_alternative<StartedEvent>(*buffer.pop()));
  EXPECT_TRUE(std::holds_alternative<TokenEvent>(*buffer.pop()));
  EXPECT_FALSE(buffer.exhausted());
  EXPECT_TRUE(is_terminal(*buffer.pop()));
  EXPECT_TRUE(buffer.exhausted());
  EXPECT_FALSE(buffer.pop()) << "does not wait";
}

TEST(histogram, counts_by_bound) {
  Histogram histogram({1, 10});
  for (const double value : {0.5, 1.0, 1.5, 10.0, 11.0}) histogram.observe(value);
  EXPECT_EQ(std::vector<std::uint64_t>(histogram.counts().begin(), histogram.counts().end()), (std::vector<std::uint64_t>{2, 2, 1}));
  EXPECT_EQ(histogram.count(), 5u);
  EXPECT_DOUBLE_EQ(histogram.sum(), 24.0);
}

}  // namespace
}  // namespace tetrad::engine_loop_test
