#include "libshard/compute/formula.h"

namespace shard {

namespace {

void append(const ScaledCodes& codes, std::vector<Leaf>& out) {
  const auto add = [&](const std::optional<Leaf>& leaf) {
    if (leaf) out.push_back(*leaf);
  };
  out.push_back(codes.codes.tensor);
  out.push_back(codes.scales.tensor);
  if (codes.scales.nested) out.insert(out.end(), {codes.scales.nested->book, codes.scales.nested->absmax});
  if (codes.zeros) out.push_back(codes.zeros->codes.tensor);
  add(codes.book);
  add(codes.scales.second);
  add(codes.row_group);
  add(codes.column_group);
  if (codes.stated) out.push_back(codes.stated->first);
}

void append(const TensorExpression& expression, std::vector<Leaf>& out) {
  if (const Leaf* const leaf = std::get_if<Leaf>(&expression.node)) {
    out.push_back(*leaf);
  } else if (const ScaledCodes* const codes = std::get_if<ScaledCodes>(&expression.node)) {
    append(*codes, out);
  } else {
    for (const WeightedSum::Term& term : std::get<WeightedSum>(expression.node).terms) append(*term.value, out);
  }
}

}  // namespace

std::vector<Leaf> leaves_of(const TensorExpression& expression) {
  std::vector<Leaf> leaves;
  append(expression, leaves);
  return leaves;
}

}  // namespace shard
