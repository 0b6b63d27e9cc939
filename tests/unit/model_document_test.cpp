// docs/model.md lists the tensors of the weights table; here the page is held to the table, row by row and in its order.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "model/weights_table.h"

namespace tetrad::model_document_test {
namespace {

std::string layers_text(WeightLayers layers) {
  switch (layers) {
    case WeightLayers::kHead: return "head";
    case WeightLayers::kModel: return "model";
    case WeightLayers::kAll: return "all";
    case WeightLayers::kGdn: return "GDN";
    case WeightLayers::kQsa: return "QSA";
    case WeightLayers::kPle: return "PLE";
    default: return "";  // parts that are recognised and not used: the page names their prefixes only
  }
}

std::string kind_text(WeightKind kind) {
  switch (kind) {
    case WeightKind::kPlain: return "plain";
    case WeightKind::kLinear: return "linear";
    case WeightKind::kExpert: return "expert";
    case WeightKind::kFusedExperts: return "stack";
    case WeightKind::kNgramTable: return "table";
    case WeightKind::kNgramConstant: return "constant";
  }
  return "";
}

// The rows of the page's table of tensors: from its head to the first line that is no row.
std::vector<std::string> page_rows() {
  std::ifstream page(TETRAD_GOLDENS "/../../docs/model.md");
  std::vector<std::string> rows;
  bool inside = false;
  for (std::string line; std::getline(page, line);) {
    if (line == "| layers | name | shape | kind |")
      inside = true;
    else if (inside && line.rfind("|", 0) != 0)
      break;
    else if (inside && line.rfind("|---", 0) != 0)
      rows.push_back(line);
  }
  return rows;
}

TEST(model_document, lists_every_tensor_of_the_weights_table) {
  std::vector<std::string> expected;
  for (const WeightRow& row : weights_table())
    if (const std::string layers = layers_text(row.layers); !layers.empty())
      expected.push_back(fmt::format("| {} | `{}` | `{}` | {} |", layers, row.name, row.shape, kind_text(row.kind)));
  EXPECT_EQ(page_rows(), expected);
}

}  // namespace
}  // namespace tetrad::model_document_test
