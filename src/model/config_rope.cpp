// Rotary settings of a config.json: "rope_parameters", or the older pair "rope_scaling" and "rope_theta".
#include <cmath>
#include <string>

#include "base/error.h"
#include "model/config_reader.h"

namespace tetrad {
namespace {

using nlohmann::json;

constexpr double kMaxTheta = 1e15;
constexpr double kMaxFactor = 1e4;

class RopeReader {
 public:
  explicit RopeReader(const ConfigReader& in) : in_(in) {
    const json* current = object("rope_parameters");
    const json* older = object("rope_scaling");
    if (current != nullptr && older != nullptr && *current != *older)
      in.refuse("rope_scaling", "absent, or equal to rope_parameters (its newer spelling)", older->dump());
    group_name_ = current != nullptr ? "rope_parameters" : "rope_scaling";
    group_ = current != nullptr ? current : older;
  }

  const json* find(const char* key) const {
    if (group_ == nullptr) return nullptr;
    const auto found = group_->find(key);
    return found == group_->end() || found->is_null() ? nullptr : &*found;
  }

  // A number of the group, or the field of the same name beside it. Both may be given if they agree.
  const json* find_or_outside(const char* key) const {
    const json* inside = find(key);
    const json* outside = in_.find(key);
    if (inside != nullptr && outside != nullptr && *inside != *outside)
      in_.refuse(key, fmt::format("the value of {}.{}, {}", group_name_, key, inside->dump()), outside->dump());
    return inside != nullptr ? inside : outside;
  }

  double number(const char* key, const json* value, double low, double high) const {
    if (!value->is_number() || !(value->get<double>() > low && value->get<double>() <= high))
      in_.refuse(path(key), fmt::format("a number in ({}, {}]", low, high), value->dump());
    return value->get<double>();
  }

  std::string path(const char* key) const { return fmt::format("{}.{}", group_name_, key); }
  const ConfigReader& config() const { return in_; }

 private:
  const json* object(const char* key) const {
    const json* value = in_.find(key);
    if (value != nullptr && !value->is_object()) in_.refuse(key, "an object", value->dump());
    return value;
  }

  const ConfigReader& in_;
  const json* group_ = nullptr;
  std::string group_name_;
};

RopeType read_type(const RopeReader& rope) {
  const json* type = rope.find("rope_type");
  const json* older = rope.find("type");
  if (type != nullptr && older != nullptr && *type != *older)
    rope.config().refuse(rope.path("type"), fmt::format("the value of rope_type, {}", type->dump()), older->dump());
  if (type == nullptr) type = older;
  if (type == nullptr || *type == "default") return RopeType::kDefault;
  if (*type == "yarn") return RopeType::kYarn;
  rope.config().refuse(rope.path("rope_type"), "default or yarn", type->dump());
}

void read_yarn(const RopeReader& rope, int max_positions, RopeConfig& result) {
  const json* factor = rope.find("factor");
  if (factor == nullptr) rope.config().refuse(rope.path("factor"), "a number above 1 for rope_type yarn", "no such field");
  result.yarn_factor = rope.number("factor", factor, 1.0, kMaxFactor);
  result.yarn_original_positions = max_positions;
  if (const json* original = rope.find("original_max_position_embeddings"); original != nullptr) {
    if (!original->is_number_integer() || !in_range(*original, 1, 1 << 30))
      rope.config().refuse(rope.path("original_max_position_embeddings"), "a whole number in [1, 2^30]", original->dump());
    result.yarn_original_positions = original->get<int>();
  }
  if (const json* value = rope.find("beta_fast")) result.yarn_beta_fast = rope.number("beta_fast", value, 0.0, kMaxFactor);
  if (const json* value = rope.find("beta_slow")) result.yarn_beta_slow = rope.number("beta_slow", value, 0.0, kMaxFactor);
  if (const json* value = rope.find("attention_factor"))
    result.yarn_attention_factor = rope.number("attention_factor", value, 0.0, kMaxFactor);
  if (result.yarn_beta_fast < result.yarn_beta_slow)
    rope.config().refuse(rope.path("beta_fast"), fmt::format("at least beta_slow = {}", result.yarn_beta_slow),
                         fmt::format("{}", result.yarn_beta_fast));
  if (const json* truncate = rope.find("truncate"); truncate != nullptr && *truncate != true)
    rope.config().refuse(rope.path("truncate"), "true or absent", truncate->dump());
  for (const char* key : {"mscale", "mscale_all_dim"})
    if (const json* value = rope.find(key)) rope.config().refuse(rope.path(key), "no such field: it is not supported", value->dump());
}

}  // namespace

RopeConfig read_rope(const ConfigReader& in, int head_dim, int index_head_dim, int max_positions) {
  const RopeReader rope(in);
  RopeConfig result;
  result.type = read_type(rope);
  const json* theta = rope.find_or_outside("rope_theta");
  if (theta == nullptr) in.refuse(rope.path("rope_theta"), "a number above 1", "no such field");
  result.theta = rope.number("rope_theta", theta, 1.0, kMaxTheta);

  double factor = 1.0;
  if (const json* value = rope.find_or_outside("partial_rotary_factor")) factor = rope.number("partial_rotary_factor", value, 0.0, 1.0);
  result.rotary_dim = static_cast<int>(head_dim * factor);
  const std::string got = fmt::format("{} (head_dim {} times partial_rotary_factor {})", result.rotary_dim, head_dim, factor);
  if (result.rotary_dim < 2 || result.rotary_dim % 2 != 0) in.refuse("rotary dimension", "an even number of at least 2", got);
  if (result.rotary_dim > index_head_dim) in.refuse("rotary dimension", fmt::format("at most indexer_head_dim = {}", index_head_dim), got);

  if (const json* section = rope.find("mrope_section")) {
    const auto good = [](const json& n) { return n.is_number_integer() && in_range(n, 0, 1 << 12); };
    if (!section->is_array() || section->size() != 3 || !good((*section)[0]) || !good((*section)[1]) || !good((*section)[2]))
      in.refuse(rope.path("mrope_section"), "three numbers of frequencies", section->dump());
    for (std::size_t i = 0; i < 3; ++i) result.mrope_section[i] = (*section)[i].get<int>();
  }
  if (result.type == RopeType::kYarn) read_yarn(rope, max_positions, result);
  return result;
}

}  // namespace tetrad
