#include "server/metrics_text.h"

#include <fmt/format.h>

#include <iterator>

namespace tetrad {
namespace {

void append_label(std::string& out, std::string_view name, std::string_view value) {
  out += out.back() == '{' ? "" : ",";
  out += name;
  out += "=\"";
  for (const char c : value) {
    if (c == '\\' || c == '"') out += '\\';
    if (c == '\n')
      out += "\\n";
    else
      out += c;
  }
  out += '"';
}

}  // namespace

void MetricsText::family(std::string_view name, std::string_view type, std::string_view help) {
  name_ = name;
  fmt::format_to(std::back_inserter(text_), "# HELP {} {}\n# TYPE {} {}\n", name, help, name, type);
}

void MetricsText::line(std::string_view suffix, const MetricLabels& labels, std::string_view bound, double value) {
  text_ += name_;
  text_ += suffix;
  if (!common_.empty() || !labels.empty() || !bound.empty()) {
    text_ += '{';
    for (const auto& [name, text] : common_) append_label(text_, name, text);
    for (const auto& [name, text] : labels) append_label(text_, name, text);
    if (!bound.empty()) append_label(text_, "le", bound);
    text_ += '}';
  }
  fmt::format_to(std::back_inserter(text_), " {}\n", value);
}

void MetricsText::sample(double value, const MetricLabels& labels) { line("", labels, {}, value); }

void MetricsText::sample(const Histogram& histogram, const MetricLabels& labels) {
  std::uint64_t cumulative = 0;
  for (std::size_t i = 0; i < histogram.upper_bounds().size(); ++i) {
    cumulative += histogram.counts()[i];
    line("_bucket", labels, fmt::format("{}", histogram.upper_bounds()[i]), static_cast<double>(cumulative));
  }
  line("_bucket", labels, "+Inf", static_cast<double>(histogram.count()));
  line("_sum", labels, {}, histogram.sum());
  line("_count", labels, {}, static_cast<double>(histogram.count()));
}

void MetricsText::gauge(std::string_view name, std::string_view help, double value) {
  family(name, "gauge", help);
  sample(value);
}

void MetricsText::counter(std::string_view name, std::string_view help, std::uint64_t value) {
  family(name, "counter", help);
  sample(static_cast<double>(value));
}

void MetricsText::histogram(std::string_view name, std::string_view help, const Histogram& value) {
  family(name, "histogram", help);
  sample(value);
}

}  // namespace tetrad
