#include "engine/verify_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "engine/generator.h"
#include "engine/golden_json.h"

namespace tetrad {
namespace {

constexpr std::size_t kReferenceMaxTokens = 64;  // an answer of the goldens that long was cut, not ended

// Counts a comparison and keeps the first disagreement.
void count(TextCheck& check, bool same, const std::string& what) {
  ++check.checked;
  if (same) return;
  if (check.wrong++ == 0) check.note = what;
}

std::string excerpt(const std::string& text) { return text.size() <= 60 ? text : text.substr(0, 57) + "..."; }

nlohmann::ordered_json conversation_of(const GoldenValue& entry) {
  nlohmann::ordered_json conversation{{"messages", entry.field("messages").json()}, {"flags", entry.field("flags").json()}};
  if (const GoldenValue tools = entry.field("tools"); !tools.json().is_null()) conversation["tools"] = tools.json();
  try {
    return conversation_variables(conversation);
  } catch (const InputError& error) {
    entry.refuse(error.what());
  }
}

struct RecordedAnswer {
  std::vector<int> ids;
  std::string text;
  double least_margin = std::numeric_limits<double>::infinity();
};

RecordedAnswer recorded_answer(const GoldenValue& run) {
  RecordedAnswer answer{run.field("ids").ids(), run.field("text").text()};
  if (answer.ids.empty()) run.field("ids").refuse("an answer has at least one token");
  for (const double margin : run.field("margin").numbers()) answer.least_margin = std::min(answer.least_margin, margin);
  return answer;
}

void compare_answer(TextCheck& check, Generator& generator, StatePool& pool, const GenerationRequest& request,
                    const RecordedAnswer& expected, const Tokenizer& tokenizer) {
  SequenceState state(pool);
  const GenerationResult result = generator.generate(state, request);
  for (std::size_t i = 0; i < std::max(expected.ids.size(), result.ids.size()); ++i)
    count(check, i < expected.ids.size() && i < result.ids.size() && expected.ids[i] == result.ids[i],
          fmt::format("token {} of the answer", i));
  count(check, tokenizer.decode(result.ids) == expected.text, "text of the answer");
}

}  // namespace

TextCheck verify_tokenizer(const std::filesystem::path& file, const Tokenizer& tokenizer) {
  TextCheck check{.what = file.filename().string(), .note = ""};
  const nlohmann::ordered_json golden = read_golden_json(file);
  for (const GoldenValue& entry : GoldenValue(golden, file.string()).entries()) {
    const std::string text = entry.field("text").text();
    count(check, tokenizer.encode(text) == entry.field("ids").ids(), fmt::format("ids of '{}'", excerpt(text)));
  }
  return check;
}

TextCheck verify_template(const std::filesystem::path& file, const ChatTemplate& chat_template, const Tokenizer& tokenizer) {
  TextCheck check{.what = file.filename().string(), .note = ""};
  const nlohmann::ordered_json golden = read_golden_json(file);
  int conversation = 0;
  for (const GoldenValue& entry : GoldenValue(golden, file.string()).entries()) {
    const std::string expected = entry.field("rendered").text();
    const std::vector<int> ids = entry.field("ids").ids();
    const nlohmann::ordered_json variables = conversation_of(entry);
    try {
      const std::string rendered = chat_template.render(variables);
      count(check, rendered == expected, fmt::format("rendering of conversation {}", conversation));
      count(check, tokenizer.encode(rendered) == ids, fmt::format("ids of conversation {}", conversation));
    } catch (const InputError& error) {
      count(check, false, fmt::format("conversation {}: {}", conversation, error.what()));
    }
    ++conversation;
  }
  return check;
}

std::vector<TextCheck> verify_generation(const std::filesystem::path& file, StatePool& pool, const Tokenizer& tokenizer) {
  std::vector<TextCheck> checks;
  Generator generator(pool, tokenizer);
  const nlohmann::ordered_json golden = read_golden_json(file);
  for (const GoldenValue& entry : GoldenValue(golden, file.string()).field("cases").entries()) {
    const RecordedAnswer cpu = recorded_answer(entry.field("cpu_bf16")), gpu = recorded_answer(entry.field("gpu_bf16"));
    GenerationRequest request;
    request.prompt_ids = entry.field("prompt_ids").ids();
    request.sampling.temperature = 0;
    request.max_tokens = static_cast<int>(kReferenceMaxTokens);
    if (cpu.ids.size() < kReferenceMaxTokens) request.stop_ids = {cpu.ids.back()};
    request.skip_special = false;
    TextCheck check{.what = fmt::format("{} case {} ({}, {} tokens)", file.filename().string(), checks.size(), entry.field("task").text(),
                                        request.prompt_ids.size()),
                    .note = fmt::format("least margin {:.2f}", cpu.least_margin)};
    try {
      // Text and ids were recorded side by side: a file changed in one of them alone is found even where no run is compared.
      if (tokenizer.decode(cpu.ids) != cpu.text || tokenizer.decode(gpu.ids) != gpu.text)
        count(check, false, "the recorded ids do not give the recorded text");
      check.undecided = cpu.ids != gpu.ids;
      if (check.undecided && check.wrong == 0) check.note = "undecided: the reference's own runs differ";
      if (!check.undecided) compare_answer(check, generator, pool, request, cpu, tokenizer);
    } catch (const InputError& error) {
      entry.refuse(error.what());
    }
    checks.push_back(std::move(check));
  }
  return checks;
}

}  // namespace tetrad
