#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/terminal.h"
#include "io/checkpoint.h"
#include "model/load_weights.h"
#include "model/state_layout.h"
#include "model/step_work.h"
#include "model/synthetic.h"
#include "model/weights_table.h"

namespace tetrad::cli {
namespace {

constexpr double kMiB = 1 << 20;

namespace fs = std::filesystem;
using nlohmann::ordered_json;

struct InspectOptions {
  std::string directory;
  std::string expect;
  bool json = false;
};

struct CensusRow {
  std::size_t count = 0;
  std::uint64_t bytes = 0;
};
using Census = std::map<std::pair<std::string, std::string>, CensusRow>;  // (group, dtype)

struct Inspection {
  std::optional<Config> config;
  std::shared_ptr<const Checkpoint> checkpoint;
  Census census;
  std::vector<std::string> problems;  // each would be refused
  std::vector<std::string> notes;
};

// The part of the model that a tensor belongs to, for the census. First match wins.
std::string census_group(const std::string& name) {
  switch (tensor_group(name)) {
    case TensorGroup::kMtp: return "draft head (mtp)";
    case TensorGroup::kVision: return "vision tower";
    case TensorGroup::kIgnored: return "ignored";
    case TensorGroup::kText: break;
  }
  constexpr std::array<std::pair<std::string_view, std::string_view>, 12> kParts{{{"embed_tokens", "embedding"},
                                                                                  {"lm_head", "output head"},
                                                                                  {"ngram_embedding", "n-gram table"},
                                                                                  {".ple.", "n-gram projections"},
                                                                                  {"hyper_connection", "hyper-connections"},
                                                                                  {".linear_attn.", "gated delta net"},
                                                                                  {".indexer.", "indexer"},
                                                                                  {".self_attn.", "sparse attention"},
                                                                                  {".shared_expert_gate", "shared experts"},
                                                                                  {".shared_expert.", "shared experts"},
                                                                                  {".mlp.experts.", "routed experts"},
                                                                                  {".mlp.gate.", "routers"}}};
  for (const auto& [part, group] : kParts)
    if (name.find(part) != std::string::npos) return std::string(group);
  return "other";
}

template <class Action>
void collect(std::vector<std::string>& problems, Action action) {
  try {
    action();
  } catch (const LoadError& e) {
    problems.emplace_back(e.what());
  }
}

Inspection inspect_directory(const InspectOptions& options) {
  const fs::path directory = options.directory;
  Inspection result;
  const fs::path config_file = options.expect.empty() ? directory / "config.json" : fs::path(options.expect);
  collect(result.problems, [&] { result.config = load_config(config_file); });
  collect(result.problems, [&] { result.checkpoint = Checkpoint::open(directory); });
  if (!result.checkpoint) return result;
  for (const CheckpointTensor& tensor : result.checkpoint->tensors()) {
    CensusRow& row = result.census[{census_group(tensor.name), std::string(dtype_name(tensor.dtype))}];
    ++row.count;
    row.bytes += tensor.num_bytes;
  }
  const auto declared = result.checkpoint->declared_bytes();
  if (declared && *declared != result.checkpoint->total_bytes())
    result.notes.push_back(fmt::format("the index declares {} bytes, the tensors hold {}", *declared, result.checkpoint->total_bytes()));
  if (!result.config) return result;
  WeightsReport report;
  (void)bind_weights(result.checkpoint, *result.config, report);
  for (const auto& note : report.notes) result.notes.push_back(note);
  if (!report.ok()) result.problems.push_back(report.message(directory.string()));
  for (const char* file : {"tokenizer.json", "generation_config.json"})
    if (!fs::exists(directory / file)) result.notes.push_back(fmt::format("{} is absent", file));
  return result;
}

std::string layers_text(const Config& c) {
  const auto gdn = std::count(c.layer_kinds.begin(), c.layer_kinds.end(), LayerKind::kGdn);
  std::vector<std::string> ple;
  for (const int l : c.ple_layers) ple.push_back(fmt::format("{}", l));
  return fmt::format("{}: {} gated delta net, {} sparse attention; n-gram embedding on {} (counted from zero)", c.num_layers, gdn,
                     c.num_layers - gdn, ple.empty() ? "none" : fmt::format("layer {}", fmt::join(ple, ", ")));
}

// Name and value of every fact of the config that a reader asks about first.
std::vector<std::pair<std::string, std::string>> config_facts(const Config& c) {
  std::vector<std::pair<std::string, std::string>> facts{
      {"model type", c.model_type},
      {"layers", layers_text(c)},
      {"width", fmt::format("hidden {}, {} streams, mixer rank {}, vocabulary {}", c.hidden_size, c.hc_count, c.hc_lowrank, c.vocab_size)},
      {"attention", fmt::format("{} query heads, {} key-value heads of {}; rotary {} of {}, theta {}", c.num_attention_heads,
                                c.num_kv_heads, c.head_dim, c.rope.rotary_dim, c.head_dim, c.rope.theta)},
      {"indexer", fmt::format("{} heads of {}, blocks of {} tokens, budget {} tokens", c.index_heads, c.index_head_dim, c.compress_ratio,
                              c.index_budget)},
      {"gated delta net",
       fmt::format("{} key heads of {}, {} value heads of {}, convolution {}, {} gate", c.gdn_key_heads, c.gdn_key_dim, c.gdn_value_heads,
                   c.gdn_value_dim, c.gdn_conv_width, c.output_gate == OutputGate::kSigmoid ? "sigmoid" : "silu")},
      {"experts", fmt::format("{} of width {}, {} per token{}; shared width {}", c.num_experts, c.moe_intermediate, c.experts_per_token,
                              c.norm_topk_prob ? "" : " (weights not renormalised)", c.shared_expert_intermediate)}};
  if (!c.ple_layers.empty())
    facts.emplace_back("n-gram table", fmt::format("up to {} tokens, {} heads, rows of {}, vocabulary base {}, end of text {}",
                                                   c.ngram_size, c.ngram_heads(), c.ngram_row_dim(), c.ngram_vocab_base, c.ple_eos_token));
  const StateLayout state = make_state_layout(c);
  const double token_bytes = static_cast<double>(state.page_bytes) / state.page_tokens;
  facts.emplace_back("state of a sequence", fmt::format("{:.2f} MiB, and {:.2f} KiB for every token ({:.1f} MiB at {} positions)",
                                                        static_cast<double>(state.slot_bytes) / kMiB, token_bytes / 1024.0,
                                                        token_bytes * c.max_positions / kMiB, c.max_positions));
  facts.emplace_back("read per decoded token",
                     fmt::format("{:.1f} MB of weights", decode_work(c, 0, c.quantization ? 1.0 : 2.0).weight_bytes / 1e6));
  facts.emplace_back("positions", c.rope.type == RopeType::kYarn ? fmt::format("{} (yarn, factor {})", c.max_positions, c.rope.yarn_factor)
                                                                 : fmt::format("{}", c.max_positions));
  facts.emplace_back("output head", c.tie_word_embeddings ? "tied to the embedding" : "its own");
  facts.emplace_back("quantization", c.quantization ? fmt::format("{}, blocks of {} x {}", c.quantization->method,
                                                                  c.quantization->block_rows, c.quantization->block_columns)
                                                    : "none declared");
  facts.emplace_back("active per token", fmt::format("{:.3f} billion parameters", static_cast<double>(active_parameters(c)) / 1e9));
  return facts;
}

std::string part_text(const Census& census, const std::string& group) {
  CensusRow sum;
  for (const auto& [key, row] : census) {
    if (key.first != group) continue;
    sum.count += row.count;
    sum.bytes += row.bytes;
  }
  return sum.count == 0 ? "absent" : fmt::format("present ({} tensors, {} bytes), not used yet", sum.count, sum.bytes);
}

void print_text(const InspectOptions& options, const Inspection& result) {
  fmt::print("{}\n", options.directory);
  if (result.config)
    for (const auto& [name, value] : config_facts(*result.config)) fmt::print("  {:<18} {}\n", name, value);
  if (result.checkpoint) {
    fmt::print("  {:<18} {}\n", "draft head", part_text(result.census, "draft head (mtp)"));
    fmt::print("  {:<18} {}\n", "vision tower", part_text(result.census, "vision tower"));
    fmt::print("\n  {:<20} {:<8} {:>8} {:>16}\n", "tensors", "type", "count", "bytes");
    for (const auto& [key, row] : result.census) fmt::print("  {:<20} {:<8} {:>8} {:>16}\n", key.first, key.second, row.count, row.bytes);
    fmt::print("  {:<20} {:<8} {:>8} {:>16}   in {} files\n", "total", "", result.checkpoint->tensors().size(),
               result.checkpoint->total_bytes(), result.checkpoint->files().size());
  }
  for (const auto& note : result.notes) fmt::print("note: {}\n", note);
  for (const auto& problem : result.problems) fmt::print("refused: {}\n", printable(problem));
  if (result.problems.empty()) fmt::print("loads: every tensor is accounted for\n");
}

void print_json(const InspectOptions& options, const Inspection& result) {
  ordered_json out{{"directory", options.directory}, {"ok", result.problems.empty()}};
  if (result.config) {
    ordered_json config = ordered_json::object();
    for (const auto& [name, value] : config_facts(*result.config)) config[name] = value;
    out["config"] = config;
    out["active_parameters"] = active_parameters(*result.config);
    out["quantization"] = result.config->quantization ? ordered_json(result.config->quantization->method) : ordered_json();
  }
  if (result.checkpoint) {
    out["tensors"] = result.checkpoint->tensors().size();
    out["bytes"] = result.checkpoint->total_bytes();
    out["files"] = result.checkpoint->files().size();
    out["census"] = ordered_json::array();
    for (const auto& [key, row] : result.census)
      out["census"].push_back({{"group", key.first}, {"dtype", key.second}, {"count", row.count}, {"bytes", row.bytes}});
    const auto present = [&](const char* group) {
      return std::any_of(result.census.begin(), result.census.end(), [&](const auto& entry) { return entry.first.first == group; });
    };
    out["mtp"] = present("draft head (mtp)");
    out["vision"] = present("vision tower");
  }
  out["notes"] = result.notes;
  out["problems"] = result.problems;
  fmt::print("{}\n", out.dump(2, ' ', false, ordered_json::error_handler_t::replace));
}

void print_expected(const InspectOptions& options) {
  const Config config = load_config(options.expect);
  const auto tensors = expected_tensors(config, published_layout(config));
  std::uint64_t bytes = 0;
  for (const auto& tensor : tensors) bytes += tensor.num_bytes;
  if (options.json) {
    ordered_json list = ordered_json::array();
    for (const auto& t : tensors)
      list.push_back({{"name", t.name}, {"dtype", dtype_name(t.dtype)}, {"shape", t.shape}, {"bytes", t.num_bytes}});
    fmt::print("{}\n", ordered_json{{"tensors", list}, {"count", tensors.size()}, {"bytes", bytes}}.dump(1));
    return;
  }
  for (const auto& t : tensors) fmt::print("{} {} {} {}\n", t.name, dtype_name(t.dtype), shape_text(t.shape), t.num_bytes);
  fmt::print("{} tensors, {} bytes\n", tensors.size(), bytes);
}

int inspect(const InspectOptions& options) {
  if (options.directory.empty()) {
    if (options.expect.empty()) fail<InputError>("inspect: give a checkpoint directory, or --expect CONFIG.json");
    print_expected(options);
    return 0;
  }
  const Inspection result = inspect_directory(options);
  options.json ? print_json(options, result) : print_text(options, result);
  constexpr int kExitBadInput = 2;
  return result.problems.empty() ? 0 : kExitBadInput;
}

}  // namespace

void add_inspect(CLI::App& app, int& exit_code) {
  const auto options = std::make_shared<InspectOptions>();
  app.add_option("directory", options->directory, "Checkpoint directory");
  app.add_option("--expect", options->expect,
                 "A config.json: without a directory, list every tensor it calls for; with one, check against it");
  app.add_flag("--json", options->json, "Write JSON");
  app.callback([options, &exit_code] { exit_code = inspect(*options); });
}

}  // namespace tetrad::cli
