// `tetrad serve` over a backend that follows a script: every flag of the command, real sockets, no model. A prompt that holds `plan:NAME`
// (the last one counts) is answered by that plan of the file given with --plans, any other by the plan "default":
//
//   {"NAME": {"answer": "text or token ids", "fault_after": 3}}   the answer, then the end of the turn; with fault_after numbers that are
//                                                                 no numbers come in place of the fourth token
//   {"NAME": {"forever": "text of distinct tokens"}}              round and round
//
// Commands are lines on stdin, answered by `ok` on stdout: `hold` stops the engine before its next step, `step N` lets N steps pass, `go`
// lets all pass, `delay US` gives each step a duration. The end of stdin is `go`.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <iostream>
#include <limits>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>

#include "base/error.h"
#include "cli/serve_options.h"
#include "io/json_file.h"
#include "support/scripted_backend.h"
#include "text/tokenizer.h"

namespace tetrad::testing {
namespace {

// Holds back the steps of the engine.
class Gate {
 public:
  void pass() {
    std::unique_lock lock(mutex_);
    opened_.wait(lock, [&] { return !held_ || permits_ > 0; });
    if (held_) --permits_;
    const auto delay = delay_;
    lock.unlock();
    if (delay.count() > 0) std::this_thread::sleep_for(delay);
  }
  void hold(bool held) {
    change([&] { held_ = held; });
  }
  void permit(int steps) {
    change([&] { permits_ += steps; });
  }
  void delay(int us) {
    change([&] { delay_ = std::chrono::microseconds(us); });
  }

 private:
  template <class Change>
  void change(Change apply) {
    const std::lock_guard lock(mutex_);
    apply();
    if (!held_) permits_ = 0;
    opened_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable opened_;
  bool held_ = false;
  int permits_ = 0;
  std::chrono::microseconds delay_{0};
};

void obey(Gate& gate) {
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string verb;
    int number = 0;
    words >> verb >> number;
    if (verb == "hold" || verb == "go") gate.hold(verb == "hold");
    if (verb == "step") gate.permit(number);
    if (verb == "delay") gate.delay(number);
    std::puts("ok");
    std::fflush(stdout);
  }
  gate.hold(false);
}

struct Plan {
  std::vector<int> answer, forever;
  int fault_after = -1;
};
using Plans = std::map<std::string, Plan, std::less<>>;

Plans read_plans(const std::string& file, const Tokenizer& tokenizer) {
  const auto ids = [&](const nlohmann::ordered_json& value) {
    return value.is_string() ? tokenizer.encode(value.get<std::string>()) : value.get<std::vector<int>>();
  };
  Plans plans;
  if (!file.empty()) {
    const auto json = read_json_file(file);
    for (const auto& [name, entry] : json.items()) {
      Plan& plan = plans[name];
      if (entry.contains("answer")) plan.answer = ids(entry["answer"]);
      if (entry.contains("forever")) plan.forever = ids(entry["forever"]);
      plan.fault_after = entry.value("fault_after", -1);
    }
  }
  plans.try_emplace("default", Plan{tokenizer.encode("Hello."), {}, -1});
  return plans;
}

class PlannedScript {
 public:
  PlannedScript(Plans plans, std::shared_ptr<const Tokenizer> tokenizer)
      : plans_(std::move(plans)),
        tokenizer_(std::move(tokenizer)),
        turn_(tokenizer_->added_token("<|im_start|>").value()),
        end_(tokenizer_->added_token("<|im_end|>").value()) {}

  void operator()(std::span<const int> history, std::span<float> logits) const {
    const Plan& plan = plan_of(tokenizer_->decode(history));
    int next = end_;
    if (!plan.forever.empty()) {
      const auto last = std::find(plan.forever.begin(), plan.forever.end(), history.back());
      next = last == plan.forever.end() || last + 1 == plan.forever.end() ? plan.forever.front() : *(last + 1);
    } else {
      const std::size_t given = given_of(plan.answer, history);
      if (static_cast<int>(given) == plan.fault_after) logits.front() = std::numeric_limits<float>::quiet_NaN();
      if (given < plan.answer.size()) next = plan.answer[given];
    }
    logits[static_cast<std::size_t>(next)] = 10.0f;
  }

 private:
  const Plan& plan_of(std::string_view text) const {
    constexpr std::string_view kMark = "plan:";
    const std::size_t at = text.rfind(kMark);
    if (at == std::string_view::npos) return plans_.at("default");
    std::string_view name = text.substr(at + kMark.size());
    name = name.substr(0, name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_"));
    const auto found = plans_.find(name);
    if (found == plans_.end()) fail<InputError>("there is no plan '{}'", name);
    return found->second;
  }

  // How much of the answer stands at the end of the history: of the last turn only.
  std::size_t given_of(const std::vector<int>& answer, std::span<const int> history) const {
    const auto turn = std::find(history.rbegin(), history.rend(), turn_);
    std::size_t given = std::min(static_cast<std::size_t>(turn - history.rbegin()), answer.size());
    while (given > 0 && !std::equal(answer.begin(), answer.begin() + static_cast<std::ptrdiff_t>(given),
                                    history.end() - static_cast<std::ptrdiff_t>(given)))
      --given;
    return given;
  }

  Plans plans_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  int turn_, end_;
};

// Costs next to nothing a token, however long the sequence: what is measured is all but the model. Checks nothing.
class FreeBackend final : public ScriptedBackend {
 public:
  FreeBackend(const Sizes& sizes, std::vector<int> words)
      : ScriptedBackend(sizes, {}), words_(std::move(words)), vocab_(static_cast<std::size_t>(sizes.vocab_size)) {}

  StepResult step(const StepBatch& batch, std::span<float> logits) override {
    if (before_step) before_step(batch);
    for (std::size_t row = 0; row < batch.logit_rows.size(); ++row) {
      const auto out = logits.subspan(row * vocab_, vocab_);
      std::fill(out.begin(), out.end(), 0.0f);
      const auto last = static_cast<std::size_t>(batch.token_ids[static_cast<std::size_t>(batch.logit_rows[row])]);
      out[static_cast<std::size_t>(words_[(last + 1) % words_.size()])] = 10.0f;
    }
    return {};
  }
  int kept_logit_rows() const override { return 0; }
  void clear_slot(int) override {}
  void copy_slot(int, int) override {}

 private:
  std::vector<int> words_;
  std::size_t vocab_;
};

int serve_scripted(int argc, const char* const* argv) {
  CLI::App app("tetrad serve over a script");
  cli::ServeOptions options;
  std::string plans_file;
  bool is_free = false;
  int max_rows = 64;
  cli::add_serve_options(app, options);
  app.add_option("--plans", plans_file, "What prompts are answered with");
  app.add_flag("--free", is_free, "Endless words at no cost, and no plans");
  app.add_option("--max-rows", max_rows, "Packed rows of a step");
  CLI11_PARSE(app, argc, argv);
  Gate gate;
  options.make_backend = [&](const Config& config, const cli::BackendSize& size) -> std::unique_ptr<Backend> {
    auto tokenizer = std::make_shared<const Tokenizer>(cli::load_tokenizer(options.model.directory));
    constexpr int kPageTokens = 8;
    const ScriptedBackend::Sizes sizes{.vocab_size = config.vocab_size,
                                       .max_positions = config.max_positions,
                                       .num_slots = size.num_slots,
                                       .num_pages = size.max_length / kPageTokens + size.num_slots,
                                       .max_rows = max_rows};
    std::unique_ptr<ScriptedBackend> backend;
    if (is_free)
      backend = std::make_unique<FreeBackend>(sizes, tokenizer->encode(" the one and that is"));
    else
      backend = std::make_unique<ScriptedBackend>(sizes, PlannedScript(read_plans(plans_file, *tokenizer), tokenizer));
    backend->before_step = [&gate](const StepBatch&) { gate.pass(); };
    return backend;
  };
  std::thread([&gate] { obey(gate); }).detach();
  return cli::serve(options);
}

}  // namespace
}  // namespace tetrad::testing

int main(int argc, char** argv) {
  int exit_code = 1;
  try {
    exit_code = tetrad::testing::serve_scripted(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "tetrad_scripted_server: %s\n", error.what());
  }
  std::_Exit(exit_code);  // the thread that reads stdin is not waited for, and holds its lock
}
