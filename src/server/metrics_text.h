#pragma once
// Writes Prometheus' text exposition format, 0.0.4.
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/engine_stats.h"

namespace tetrad {

using MetricLabels = std::vector<std::pair<std::string_view, std::string>>;

class MetricsText {
 public:
  // Labels that every sample carries.
  explicit MetricsText(MetricLabels common = {}) : common_(std::move(common)) {}

  // Starts a family; samples follow. type: "gauge", "counter" or "histogram".
  void family(std::string_view name, std::string_view type, std::string_view help);
  void sample(double value, const MetricLabels& labels = {});
  void sample(const Histogram& histogram, const MetricLabels& labels = {});

  // A family of one sample.
  void gauge(std::string_view name, std::string_view help, double value);
  void counter(std::string_view name, std::string_view help, std::uint64_t value);
  void histogram(std::string_view name, std::string_view help, const Histogram& value);

  const std::string& text() const { return text_; }

 private:
  void line(std::string_view suffix, const MetricLabels& labels, std::string_view bound, double value);

  MetricLabels common_;
  std::string name_, text_;
};

}  // namespace tetrad
