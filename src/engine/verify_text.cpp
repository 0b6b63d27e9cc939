#include "engine/verify_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "engine/generator.h"
#include "io/mapped_file.h"
#include "text/json_bounded.h"

namespace tetrad {
namespace {

constexpr std::size_t kReferenceMaxTokens = 64;  // an answer of the goldens that long was cut, not ended

nlohmann::ordered_json read_golden(const std::filesystem::path& file) {
  const MappedFile mapped = MappedFile::open(file);
  return parse_json_bounded({reinterpret_cast<const char*>(mapped.bytes().data()), mapped.bytes().size()}, file.string());
}

// Counts a comparison and keeps the first disagreement.
void count(TextCheck& check, bool same, const std::string& what) {
  ++check.checked;
  if (same) return;
  if (check.wrong++ == 0) check.note = what;
}

std::string excerpt(const std::string& text) { return text.size() <= 60 ? text : text.substr(0, 57) + "..."; }

}  // namespace

TextCheck verify_tokenizer(const std::filesystem::path& file, const Tokenizer& tokenizer) {
  TextCheck check{.what = file.filename().string(), .note = ""};
  const nlohmann::ordered_json golden = read_golden(file);
  for (const auto& entry : golden) {
    const auto text = entry.at("text").get<std::string>();
    count(check, tokenizer.encode(text) == entry.at("ids").get<std::vector<int>>(), fmt::format("ids of '{}'", excerpt(text)));
  }
  return check;
}

TextCheck verify_template(const std::filesystem::path& file, const ChatTemplate& chat_template, const Tokenizer& tokenizer) {
  TextCheck check{.what = file.filename().string(), .note = ""};
  const nlohmann::ordered_json golden = read_golden(file);
  for (const auto& entry : golden) {
    nlohmann::ordered_json conversation{{"messages", entry.at("messages")}, {"flags", entry.at("flags")}};
    if (!entry.at("tools").is_null()) conversation["tools"] = entry.at("tools");
    const std::string rendered = chat_template.render(conversation_variables(conversation));
    count(check, rendered == entry.at("rendered").get<std::string>(), fmt::format("rendering of conversation {}", check.checked));
    count(check, tokenizer.encode(rendered) == entry.at("ids").get<std::vector<int>>(),
          fmt::format("ids of conversation {}", check.checked / 2));
  }
  return check;
}

std::vector<TextCheck> verify_generation(const std::filesystem::path& file, StatePool& pool, const Tokenizer& tokenizer) {
  std::vector<TextCheck> checks;
  Generator generator(pool, tokenizer);
  const nlohmann::ordered_json golden = read_golden(file);
  for (const auto& entry : golden.at("cases")) {
    const auto expected = entry.at("cpu_bf16").at("ids").get<std::vector<int>>();
    if (expected != entry.at("gpu_bf16").at("ids").get<std::vector<int>>()) continue;
    GenerationRequest request;
    request.prompt_ids = entry.at("prompt_ids").get<std::vector<int>>();
    request.sampling.temperature = 0;
    request.max_tokens = static_cast<int>(kReferenceMaxTokens);
    if (expected.size() < kReferenceMaxTokens) request.stop_ids = {expected.back()};
    request.skip_special = false;
    SequenceState state(pool);
    const GenerationResult result = generator.generate(state, request);

    double margin = std::numeric_limits<double>::infinity();
    for (const double m : entry.at("cpu_bf16").at("margin").get<std::vector<double>>()) margin = std::min(margin, m);
    TextCheck check{.what = fmt::format("{} case {} ({}, {} tokens)", file.filename().string(), checks.size(),
                                        entry.at("task").get<std::string>(), request.prompt_ids.size()),
                    .note = fmt::format("least margin {:.2f}", margin)};
    for (std::size_t i = 0; i < std::max(expected.size(), result.ids.size()); ++i)
      count(check, i < expected.size() && i < result.ids.size() && expected[i] == result.ids[i], fmt::format("token {} of the answer", i));
    count(check, tokenizer.decode(result.ids) == entry.at("cpu_bf16").at("text").get<std::string>(), "text of the answer");
    checks.push_back(std::move(check));
  }
  return checks;
}

}  // namespace tetrad
