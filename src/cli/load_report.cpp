#include "cli/load_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace tetrad::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kMilliseconds = 1e3;

double mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return values.empty() ? 0 : sum / static_cast<double>(values.size());
}

// Mean time of a token after the first.
double tpot(const LoadAnswer& answer) {
  return answer.completion_tokens > 1 ? (answer.last_token - answer.first_token) / (answer.completion_tokens - 1) : 0;
}

Json spread(std::vector<double> seconds) {
  std::sort(seconds.begin(), seconds.end());
  return {{"mean", mean(seconds) * kMilliseconds},
          {"p50", percentile(seconds, 0.5) * kMilliseconds},
          {"p90", percentile(seconds, 0.9) * kMilliseconds},
          {"p99", percentile(seconds, 0.99) * kMilliseconds}};
}

}  // namespace

double percentile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  const auto rank = static_cast<std::size_t>(std::ceil(share * static_cast<double>(values.size())));
  const std::size_t index = std::clamp<std::size_t>(rank, 1, values.size()) - 1;
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(index), values.end());
  return values[index];
}

bool LoadGoal::met_by(const LoadAnswer& answer) const {
  const auto within = [](double limit, double seconds) { return limit <= 0 || seconds * kMilliseconds <= limit; };
  return answer.good() && within(ttft, answer.first_token - answer.start) && within(itl, mean(answer.gaps)) &&
         within(tpot, cli::tpot(answer)) && within(e2e, answer.end - answer.start);
}

LoadGoal parse_goodput(const std::string& text) {
  LoadGoal goal;
  for (std::size_t start = 0; start < text.size();) {
    const std::size_t end = std::min(text.find(',', start), text.size());
    const std::string item = text.substr(start, end - start);
    const std::size_t colon = item.find(':');
    const std::string name = item.substr(0, colon);
    double* limit = name == "ttft"   ? &goal.ttft
                    : name == "itl"  ? &goal.itl
                    : name == "tpot" ? &goal.tpot
                    : name == "e2e"  ? &goal.e2e
                                     : nullptr;
    std::size_t used = 0;
    double value = 0;
    try {
      if (colon != std::string::npos) value = std::stod(item.substr(colon + 1), &used);
    } catch (const std::exception&) {
      used = 0;
    }
    if (limit == nullptr || used == 0 || colon + 1 + used != item.size() || !(value > 0) || !std::isfinite(value))
      fail<InputError>("--goodput {}: expected NAME:MILLISECONDS with ttft, itl, tpot or e2e, got '{}'", text, item);
    *limit = value;
    start = end + 1;
  }
  return goal;
}

Json load_report(std::span<const LoadAnswer> answers, double seconds, const LoadGoal& goal) {
  std::vector<double> first, whole, per_token, gaps;
  std::map<std::string, int> errors;
  std::int64_t prompt = 0, cached = 0, completion = 0;
  int good = 0, completed = 0;
  for (const LoadAnswer& answer : answers) {
    if (!answer.good()) {
      ++errors[answer.error];
      continue;
    }
    ++completed;
    prompt += answer.prompt_tokens;
    cached += answer.cached_tokens;
    completion += answer.completion_tokens;
    if (answer.first_token > 0) first.push_back(answer.first_token - answer.start);
    whole.push_back(answer.end - answer.start);
    if (answer.completion_tokens > 1) per_token.push_back(tpot(answer));
    gaps.insert(gaps.end(), answer.gaps.begin(), answer.gaps.end());
    good += goal.met_by(answer) ? 1 : 0;
  }
  const double rate = seconds > 0 ? 1 / seconds : 0;
  Json report = {{"requests", answers.size()},
                 {"completed", completed},
                 {"errors", Json(errors)},
                 {"seconds", seconds},
                 {"requests_per_s", completed * rate},
                 {"prompt_tokens", prompt},
                 {"cached_tokens", cached},
                 {"completion_tokens", completion},
                 {"prompt_tokens_per_s", static_cast<double>(prompt) * rate},
                 {"completion_tokens_per_s", static_cast<double>(completion) * rate},
                 {"ttft_ms", spread(std::move(first))},
                 {"itl_ms", spread(std::move(gaps))},
                 {"tpot_ms", spread(std::move(per_token))},
                 {"e2e_ms", spread(std::move(whole))}};
  if (goal.stated()) {
    report["good_requests"] = good;
    report["good_requests_per_s"] = good * rate;
    report["goodput"] = answers.empty() ? 0 : static_cast<double>(good) / static_cast<double>(answers.size());
  }
  return report;
}

std::string load_table(const Json& report) {
  std::string out;
  for (const auto& [name, value] : report.items()) {
    if (value.is_object() && value.contains("p50")) {
      out += fmt::format("{:<24}", name);
      for (const auto& [figure, number] : value.items()) out += fmt::format(" {} {:.3f} ", figure, number.get<double>());
    } else if (value.is_object()) {
      out += fmt::format("{:<24}", name);
      if (value.empty()) out += " none";
      for (const auto& [kind, count] : value.items()) out += fmt::format(" {} {}", kind, count.get<int>());
    } else if (value.is_number_float()) {
      out += fmt::format("{:<24} {:.4g}", name, value.get<double>());
    } else {
      out += fmt::format("{:<24} {}", name, value.is_string() ? value.get<std::string>() : value.dump());
    }
    out += '\n';
  }
  return out;
}

}  // namespace tetrad::cli
