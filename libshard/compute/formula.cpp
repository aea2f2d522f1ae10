#include "libshard/compute/formula.h"

#include <algorithm>
#include <cstddef>

#include "libshard/catalog/catalog.h"
#include "libshard/core/box.h"
#include "libshard/core/hash_table.h"

namespace shard {

namespace {

/// Calls `visit` for each leaf. The first is that of the codes. `Codes` is a ScaledCodes, const or not.
template <class Codes, class Visit>
void visit_leaves(Codes& codes, const Visit& visit) {
  const auto visit_one = [&](auto& leaf) {
    if (leaf) visit(*leaf);
  };
  visit(codes.codes.tensor);
  visit(codes.scales.tensor);
  if (codes.scales.nested) visit(codes.scales.nested->book), visit(codes.scales.nested->absmax);
  if (codes.zeros) visit(codes.zeros->codes.tensor);
  visit_one(codes.book);
  visit_one(codes.added);
  visit_one(codes.scales.second);
  visit_one(codes.row_group);
  visit_one(codes.column_group);
  if (codes.stated) visit(codes.stated->first);
}

void append(const TensorExpression& expression, std::vector<Leaf>& out);

/// Adds the leaves of a node.
class LeafAdder {
 public:
  explicit LeafAdder(std::vector<Leaf>& out) : out_(out) {}

  void operator()(const Leaf& leaf) const { out_.push_back(leaf); }
  void operator()(const ScaledCodes& codes) const {
    visit_leaves(codes, [this](const Leaf& leaf) { out_.push_back(leaf); });
  }
  void operator()(const WeightedSum& sum) const {
    for (const WeightedSum::Term& term : sum.terms) append(*term.value, out_);
  }
  void operator()(const LowRankProduct& product) const {
    out_.insert(out_.end(), {product.left.tensor, product.right.tensor});
  }
  void operator()(const NormalizedRows& rows) const {
    append(*rows.value, out_);
    out_.push_back(rows.magnitude);
  }
  // The stored tensor that the result replaces comes first, so that the result is sharded like it.
  void operator()(const QuantizedScales& scales) const {
    add_quantized(*scales.of, scales.of->scales, scales.of->codes);
  }
  void operator()(const QuantizedCodes& codes) const { add_quantized(*codes.of, codes.of->codes, codes.of->scales); }

 private:
  void add_quantized(const BlockQuantization& of, const Leaf& first, const Leaf& second) const {
    out_.insert(out_.end(), {first, second});
    append(*of.value, out_);
  }

  std::vector<Leaf>& out_;
};

void append(const TensorExpression& expression, std::vector<Leaf>& out) { std::visit(LeafAdder{out}, expression.node); }

}  // namespace

void set_shape(Formula& formula, std::span<const std::int64_t> shape) {
  formula.shape.assign(shape.begin(), shape.end());
  formula.strides.resize(shape.size());
  row_major_strides(formula.shape, formula.strides);
}

Formula formula_like(const Tensor& tensor) {
  Formula formula;
  formula.name = tensor.name;
  formula.dtype = tensor.dtype;
  set_shape(formula, tensor.shape.span());
  return formula;
}

std::vector<Leaf> leaves_of(const TensorExpression& expression) {
  std::vector<Leaf> leaves;
  append(expression, leaves);
  return leaves;
}

void join_tied(const Catalog& catalog, std::vector<Formula>& formulas) {
  const auto is_stored = [&](Leaf leaf) { return catalog.tensors[leaf.tensor].alias_of == kNoIndex; };
  const auto has_aliases = [&](const Formula& formula) {
    return !std::ranges::all_of(leaves_of(formula.value), is_stored);
  };
  if (std::ranges::none_of(formulas, has_aliases)) return;
  const auto stored_codes = [&](const Formula& formula) {
    ScaledCodes codes = std::get<ScaledCodes>(formula.value.node);
    visit_leaves(codes, [&](Leaf& leaf) {
      if (!is_stored(leaf)) leaf.tensor = catalog.tensors[leaf.tensor].alias_of;
    });
    return codes;
  };
  HashMap<std::uint32_t, std::size_t> first;  // By the tensor of the codes: a formula in `kept`.
  std::vector<Formula> kept;
  for (Formula& formula : formulas) {
    const ScaledCodes codes = stored_codes(formula);
    const auto [at, is_new] = first.try_emplace(codes.codes.tensor.tensor, kept.size());
    Formula* const same = is_new ? nullptr : &kept[at];
    if (same != nullptr && same->shape == formula.shape && same->strides == formula.strides &&
        stored_codes(*same) == codes) {
      same->aliases.push_back(std::move(formula.name));
    } else {
      kept.push_back(std::move(formula));
    }
  }
  formulas = std::move(kept);
}

}  // namespace shard
