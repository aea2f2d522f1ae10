// Matrix products and embeddings. Sources: _matrix_ops.py and _embedding_ops.py in torch/distributed/tensor/_ops (torch
// 2.11).
#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <utility>

#include "shardtorch/dtensor/operators.h"
#include "shardtorch/dtensor/redistribute.h"
#include "shardtorch/errors.h"
#include "shardtorch/sharded_tensor/functional.h"

namespace shard::dtensor {

namespace {

/// The placements of the result and of each tensor on one axis.
using AxisChoice = std::vector<Placement>;

/// A product with a letter for each dimension: those of both factors and of the result.
struct Product {
  std::string left, right, result;
};

std::int64_t place_in(const std::string& letters, char letter) {
  const auto found = letters.find(letter);
  return found == std::string::npos ? -1 : static_cast<std::int64_t>(found);
}

/// Result, left and right sharded along `letter`, by `kind` of shards. A letter that is not in the result makes terms.
AxisChoice sharded_along(char letter, const Product& product, const Placement& kind) {
  AxisChoice choice;
  for (const std::string* letters : {&product.result, &product.left, &product.right}) {
    const std::int64_t dim = place_in(*letters, letter);
    choice.push_back(dim >= 0 ? shard_of(kind, dim) : Placement(Replicate()));
  }
  if (place_in(product.result, letter) < 0) choice[0] = Partial();
  return choice;
}

/// The kinds of shards among the arguments, each once.
std::vector<Placement> kinds_of_shards(const OperatorCall& call) {
  std::vector<Placement> kinds;
  for (const Operand& tensor : call.tensors) {
    for (const Placement& each : tensor.layout.placements) {
      if (sharded_dim(each) < 0) continue;
      const Placement kind = shard_of(each, 0);
      if (std::ranges::find(kinds, kind) == kinds.end()) kinds.push_back(kind);
    }
  }
  return kinds;
}

/// All choices of result, left and right on one axis, in torch's order.
std::vector<AxisChoice> choices_of(const Product& product, const OperatorCall& call) {
  std::vector<AxisChoice> choices{{Replicate(), Replicate(), Replicate()}};
  const auto is_in = [](const std::string& letters, char letter) { return place_in(letters, letter) >= 0; };
  // Letters of both factors and the result, then those of both factors only, those of the left one, of the right one.
  const auto kind_of = [&](char letter) {
    if (!is_in(product.left, letter)) return 3;
    if (!is_in(product.right, letter)) return 2;
    return is_in(product.result, letter) ? 0 : 1;
  };
  const std::string letters = product.result + product.left;
  for (int kind = 0; kind < 4; ++kind) {
    std::string seen;
    for (const char letter : letters) {
      if (kind_of(letter) != kind || is_in(seen, letter)) continue;
      seen += letter;
      for (const Placement& shard : kinds_of_shards(call)) choices.push_back(sharded_along(letter, product, shard));
    }
  }
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMean}) {
    choices.push_back({Partial{op}, Partial{op}, Replicate()});
    choices.push_back({Partial{op}, Replicate(), Partial{op}});
  }
  return choices;
}

/// Whether each shard of a tensor can have an element.
bool is_shardable(const Sizes& shape, const Placements& placements, const Sizes& mesh) {
  Sizes shards(shape.size(), 1);
  for (std::size_t axis = 0; axis < mesh.size(); ++axis) {
    const std::int64_t dim = sharded_dim(placements[axis]);
    if (dim < 0) continue;
    if (dim >= std::ssize(shape)) return false;
    const auto d = static_cast<std::size_t>(dim);
    shards[d] *= mesh[axis];
    const auto* const strided = std::get_if<StridedShard>(&placements[axis]);
    if (shape[d] < shards[d] * (strided != nullptr ? strided->split_factor : 1)) return false;
  }
  return true;
}

/// The cheapest of all combinations of choices for the axes: the placements of the result and of each tensor.
std::vector<Placements> best_of(const std::vector<AxisChoice>& choices, const OperatorCall& call) {
  const Sizes mesh = call.mesh->shape();
  std::vector<Placements> results;
  std::vector<std::vector<Placements>> inputs;
  std::vector<std::size_t> picked(mesh.size(), 0);
  for (bool is_done = false; !is_done;) {
    std::vector<Placements> placements(call.tensors.size() + 1);
    for (const std::size_t pick : picked) {
      for (std::size_t i = 0; i < placements.size(); ++i) placements[i].push_back(choices[pick][i]);
    }
    bool is_valid = true;
    for (std::size_t i = 0; i < call.tensors.size(); ++i) {
      is_valid = is_valid && is_shardable(call.shape(i), placements[i + 1], mesh);
    }
    if (is_valid) {
      results.push_back(std::move(placements[0]));
      inputs.emplace_back(std::make_move_iterator(placements.begin() + 1), std::make_move_iterator(placements.end()));
    }
    is_done = true;
    for (std::size_t axis = mesh.size(); axis-- > 0 && is_done;) {
      is_done = ++picked[axis] == choices.size();
      if (is_done) picked[axis] = 0;
    }
  }
  const std::size_t best = cheapest(inputs, call);
  std::vector<Placements> chosen{std::move(results[best])};
  std::ranges::move(inputs[best], std::back_inserter(chosen));
  return chosen;
}

OperatorPlan plan_of(std::vector<Placements> chosen, Sizes shape) {
  OperatorPlan plan{{}, {{std::move(shape), std::move(chosen[0])}}};
  plan.inputs.assign(std::make_move_iterator(chosen.begin() + 1), std::make_move_iterator(chosen.end()));
  return plan;
}

/// Inserts the placements of a term that is added to the result, with broadcasting, after those of the result.
void insert_added(AxisChoice& choice, const Sizes& added, std::int64_t result_dims) {
  Placement own = choice[0];
  if (const std::int64_t dim = sharded_dim(own); dim >= 0) {
    const std::int64_t there = dim - (result_dims - std::ssize(added));
    const bool is_here = there >= 0 && added[static_cast<std::size_t>(there)] != 1;
    own = is_here ? shard_of(own, there) : Placement(Replicate());
  }
  choice.insert(choice.begin() + 1, own);
}

/// `first`: the index of the left factor among the tensors; a tensor before it is added to the product. Sizes are
/// checked here, because parts of different tensors may fit on some ranks only.
OperatorPlan plan_product(const OperatorCall& call, const Product& product, std::size_t first) {
  const Sizes &left = call.shape(first), &right = call.shape(first + 1);
  std::map<char, std::int64_t> sizes;
  bool fits = left.size() == product.left.size() && right.size() == product.right.size();
  for (std::size_t d = 0; fits && d < left.size(); ++d) sizes[product.left[d]] = left[d];
  for (std::size_t d = 0; fits && d < right.size(); ++d) {
    fits = sizes.try_emplace(product.right[d], right[d]).first->second == right[d];
  }
  SHARD_CHECK(fits, call.full_name(), ": cannot multiply tensors of the sizes ", at::IntArrayRef(left), " and ",
              at::IntArrayRef(right));
  Sizes shape;
  for (const char letter : product.result) shape.push_back(sizes.at(letter));
  std::vector<AxisChoice> choices = choices_of(product, call);
  if (first > 0) {
    SHARD_CHECK(at::infer_size(call.shape(0), shape) == shape, call.full_name(), ": cannot add a tensor of the size ",
                at::IntArrayRef(call.shape(0)), " to a product of the size ", at::IntArrayRef(shape));
    for (AxisChoice& each : choices) insert_added(each, call.shape(0), std::ssize(product.result));
  }
  return plan_of(best_of(choices, call), std::move(shape));
}

const Product kMatrices{"mk", "kn", "mn"}, kBatches{"bmk", "bkn", "bmn"};

OperatorPlan plan_mm(const OperatorCall& call) { return plan_product(call, kMatrices, 0); }
OperatorPlan plan_addmm(const OperatorCall& call) { return plan_product(call, kMatrices, 1); }
OperatorPlan plan_bmm(const OperatorCall& call) { return plan_product(call, kBatches, 0); }
OperatorPlan plan_baddbmm(const OperatorCall& call) { return plan_product(call, kBatches, 1); }

/// matmul of tensors with the same leading dimensions. Torch views these as one dimension, which fails if a later one
/// of them is sharded. This does not.
OperatorPlan plan_matmul(const OperatorCall& call) {
  std::string batch;
  for (std::int64_t d = 0; d + 2 < call.dims(0); ++d) batch += static_cast<char>('A' + d);
  return plan_product(call, {batch + "mk", batch + "kn", batch + "mn"}, 0);
}

bool has_same_batches(const OperatorCall& call) {
  const auto shape_of = [&](std::size_t arg) { return call.args[arg].toTensor().sizes(); };
  return shape_of(0).size() >= 3 && shape_of(0).size() == shape_of(1).size() &&
         shape_of(0).slice(0, shape_of(0).size() - 2) == shape_of(1).slice(0, shape_of(1).size() - 2);
}

OperatorPlan plan_embedding(const OperatorCall& call) {
  const std::int64_t dims = call.dims(1);
  std::vector<AxisChoice> choices{
      {Replicate(), Replicate(), Replicate()}, {Shard{dims}, Shard{1}, Replicate()}, {Partial(), Shard{0}, Partial()}};
  for (std::int64_t d = 0; d < dims; ++d) choices.push_back({Shard{d}, Replicate(), Shard{d}});
  Sizes shape = call.shape(1);
  shape.push_back(call.shape(0)[1]);
  OperatorPlan plan = plan_of(best_of(choices, call), std::move(shape));
  plan.inputs[1] = without_partials(plan.inputs[1]);  // Only the cost is that of terms: torch masks whole indices.
  if (std::ranges::none_of(plan.inputs[0], [](const Placement& each) { return sharded_dim(each) == 0; })) return plan;
  const RankPiece rows = part_of({call.shape(0), call.mesh->shape(), plan.inputs[0]}, *call.mesh->index());
  const std::int64_t first = rows.boxes.empty() ? 0 : rows.boxes[0].offset[0];
  plan.compute = [first, padding = call.arg("padding_idx").toInt()](const Tensors& locals) {
    return Tensors{functional::own_rows(locals[0], locals[1], first, padding)};
  };
  return plan;
}

}  // namespace

OperatorRule product_rule(const OperatorCall& call) {
  const std::string_view name = call.name();
  if (name == "mm") return plan_mm;
  if (name == "addmm") return plan_addmm;
  if (name == "bmm") return plan_bmm;
  if (name == "baddbmm") return plan_baddbmm;
  if (name == "matmul" && has_same_batches(call)) return plan_matmul;
  return name == "embedding" ? plan_embedding : nullptr;
}

}  // namespace shard::dtensor
