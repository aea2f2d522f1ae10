#include "shardtorch/dtensor/placements.h"

#include <optional>

#include "shardtorch/errors.h"

namespace shard::dtensor {

namespace {

const char* name_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return "sum";
    case ReduceOp::kMean:
      return "avg";
    case ReduceOp::kProduct:
      return "product";
    case ReduceOp::kMin:
      return "min";
    case ReduceOp::kMax:
      return "max";
    case ReduceOp::kAnd:
      return "band";
    case ReduceOp::kOr:
      return "bor";
    case ReduceOp::kXor:
      break;
  }
  return "bxor";
}

/// Combines overloads into one visitor.
template <class... Cases>
struct Visitor : Cases... {
  using Cases::operator()...;
};

/// Sum and mean commute with each other, other operations only with themselves.
ReduceOp family(ReduceOp op) { return op == ReduceOp::kMean ? ReduceOp::kSum : op; }

/// Terms of different operations cannot be combined in an arbitrary order.
void check_partials(const Placements& placements) {
  std::optional<Partial> first;
  for (const Placement& each : placements) {
    const auto* const partial = std::get_if<Partial>(&each);
    if (partial == nullptr) continue;
    SHARD_CHECK_VALUE(partial->op < ReduceOp::kAnd, "a placement cannot be ", to_string(each));
    if (!first) first = *partial;
    SHARD_CHECK_VALUE(family(first->op) == family(partial->op),
                      "Mixing different Partial reduce types is not supported, found ", to_string(placements));
  }
}

}  // namespace

std::string to_string(const Placement& placement) {
  return std::visit(
      Visitor{[](const Replicate&) { return std::string("R"); },
              [](const Shard& shard) { return c10::str("S(", shard.dim, ")"); },
              [](const StridedShard& shard) { return c10::str("_S(", shard.dim, ", ", shard.split_factor, ")"); },
              [](const Partial& partial) { return c10::str("P(", name_of(partial.op), ")"); }},
      placement);
}

std::string to_string(const Placements& placements) {
  std::string text;
  for (const Placement& each : placements) text += (text.empty() ? "" : ", ") + to_string(each);
  return "[" + text + "]";
}

Placements normalized(Placements placements, std::size_t axes, std::int64_t dims) {
  SHARD_CHECK_VALUE(placements.size() == axes,
                    "`placements` must have the same length as `device_mesh.ndim`! Found placements length: ",
                    placements.size(), ", and device_mesh.ndim: ", axes, ".");
  for (Placement& each : placements) {
    if (auto* const shard = std::get_if<Shard>(&each)) {
      shard->dim = wrapped_dim(shard->dim, dims, /*wrap_scalar=*/false);
    } else if (auto* const strided = std::get_if<StridedShard>(&each)) {
      strided->dim = wrapped_dim(strided->dim, dims, /*wrap_scalar=*/false);
      SHARD_CHECK_VALUE(strided->split_factor >= 1, "a split factor must be at least 1, found ", strided->split_factor);
    }
  }
  check_partials(placements);
  return placements;
}

Placements replicated_where(Placements placements, const std::function<bool(const Placement&)>& is_replaced) {
  for (Placement& each : placements) {
    if (is_replaced(each)) each = Replicate();
  }
  return placements;
}

Placements without_partials(Placements placements) { return replicated_where(std::move(placements), is_partial); }

/// Catalogs have no Partial; callers refuse it before.
std::vector<shard::Placement> in_catalog(const Placements& placements) {
  using Kind = shard::Placement::Kind;
  std::vector<shard::Placement> result;
  for (const Placement& each : placements) {
    result.push_back(std::visit(
        Visitor{[](const Shard& shard) {
                  return shard::Placement{Kind::kShard, static_cast<int>(shard.dim), 1};
                },
                [](const StridedShard& shard) {
                  return shard::Placement{Kind::kStridedShard, static_cast<int>(shard.dim), shard.split_factor};
                },
                [](const auto&) { return shard::Placement(); }},
        each));
  }
  return result;
}

Placement from_catalog(const shard::Placement& placement) {
  switch (placement.kind) {
    case shard::Placement::kReplicate:
      return Replicate();
    case shard::Placement::kShard:
      return Shard{placement.dim};
    case shard::Placement::kStridedShard:
      break;
  }
  return StridedShard{placement.dim, placement.split_factor};
}

bool is_partial(const Placement& placement) { return std::holds_alternative<Partial>(placement); }
bool is_replicate(const Placement& placement) { return std::holds_alternative<Replicate>(placement); }

std::int64_t sharded_dim(const Placement& placement) {
  if (const auto* const shard = std::get_if<Shard>(&placement)) return shard->dim;
  if (const auto* const strided = std::get_if<StridedShard>(&placement)) return strided->dim;
  return -1;
}

}  // namespace shard::dtensor
