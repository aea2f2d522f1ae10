#include "libshard/catalog/layouts/placement.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "libshard/core/box.h"
#include "libshard/core/error.h"
#include "libshard/core/key_text.h"
#include "libshard/core/parse_number.h"

namespace shard {

namespace {

std::string without_spaces(std::string_view text) {
  std::string kept;
  std::ranges::copy_if(text, std::back_inserter(kept), [](char c) { return c != ' ' && c != '\t'; });
  return kept;
}

[[noreturn]] void refuse_placement(std::string_view text) {
  throw Error(ErrorCode::kInvalidArgument, fmt::format("'{}' is not a placement", text))
      .expected("R, S(dim) or _S(dim,split_factor)")
      .found(text);
}

int parse_dim(std::string_view text, std::string_view whole) {
  const std::optional<std::int64_t> dim = parse_number(text);
  if (!dim || *dim < -kMaxDims || *dim >= kMaxDims) refuse_placement(whole);
  return static_cast<int>(*dim);
}

/// A shard whose parts are not those of torch.chunk also states its rule. Widths are written out.
std::string shard_text(const Placement& placement) {
  if (placement.split == CutRule::kChunk) return fmt::format("S({})", placement.dim);
  if (placement.split != CutRule::kWidths) return fmt::format("S({},{})", placement.dim, to_string(placement.split));
  return fmt::format("S({},widths={})", placement.dim, fmt::join(widths_of(placement), "+"));
}

}  // namespace

Placement parse_placement(std::string_view text) {
  const std::string tight = without_spaces(text);
  std::string_view rest = tight;
  if (rest == "R") return {};
  Placement placement;
  placement.kind = rest.starts_with("_S(") ? Placement::kStridedShard : Placement::kShard;
  const std::string_view opening = placement.kind == Placement::kStridedShard ? "_S(" : "S(";
  if (!rest.starts_with(opening) || !rest.ends_with(")")) refuse_placement(text);
  rest.remove_prefix(opening.size());
  rest.remove_suffix(1);
  if (placement.kind == Placement::kStridedShard) {
    const std::size_t comma = rest.find(',');
    if (comma == std::string_view::npos) refuse_placement(text);
    const std::optional<std::int64_t> factor = parse_number(rest.substr(comma + 1));
    if (!factor || *factor < 1) refuse_placement(text);
    placement.split_factor = *factor;
    rest = rest.substr(0, comma);
  }
  placement.dim = parse_dim(rest, text);  // A negative one counts from the end, once the tensor is known.
  return placement;
}

/// Equal parts are those of torch.chunk.
Placement in_dtensor_terms(Placement placement) {
  if (placement.split == CutRule::kEven) placement.split = CutRule::kChunk;
  return placement;
}

// A placement stores the ends of its parts, so that a part is found without a sum. Widths are their differences.
std::vector<std::int64_t> widths_of(const Placement& placement) {
  std::vector<std::int64_t> widths(placement.ends.size());
  std::adjacent_difference(placement.ends.begin(), placement.ends.end(), widths.begin());
  return widths;
}

std::string to_string(const Placement& placement) {
  switch (placement.kind) {
    case Placement::kReplicate:
      return "R";
    case Placement::kShard:
      return shard_text(placement);
    case Placement::kStridedShard:
      break;
  }
  return fmt::format("_S({},{})", placement.dim, placement.split_factor);
}

/// An axis may lack a name only if it is the only one.
std::vector<MeshAxis> parse_mesh(std::string_view text) {
  const auto refuse = [&](std::string_view why) {
    throw Error(ErrorCode::kInvalidArgument, fmt::format("'{}' is not a mesh", text))
        .because(why)
        .expected("A=N[,B=M...] or N")
        .found(text);
  };
  const std::string tight = without_spaces(text);
  std::vector<MeshAxis> mesh;
  std::int64_t ranks = 1;
  for (std::size_t begin = 0; begin <= tight.size();) {
    const std::size_t end = std::min(tight.find(',', begin), tight.size());
    const std::string_view axis = std::string_view(tight).substr(begin, end - begin);
    const std::size_t equals = axis.find('=');
    const std::string_view number = equals == std::string_view::npos ? axis : axis.substr(equals + 1);
    const std::string name(equals == std::string_view::npos ? std::string_view() : axis.substr(0, equals));
    const std::optional<std::int64_t> size = parse_number(number);
    if (!size || *size < 1) refuse("an axis has no size");
    if (name.empty() && (equals != std::string_view::npos || end != tight.size() || begin != 0)) {
      refuse("an axis has no name");
    }
    if (std::ranges::find(mesh, name, &MeshAxis::name) != mesh.end()) refuse("an axis appears twice");
    // A division, because the product of sizes could overflow.
    if (*size > kMaxRanks / ranks) refuse(fmt::format("it has more than {} ranks", kMaxRanks));
    ranks *= *size;
    mesh.push_back({name, *size});
    begin = end + 1;
  }
  return mesh;
}

/// The numbers of axes and placements come first, so that keys of different lengths cannot be equal.
std::string key_of(const Sharding& sharding) {
  KeyText key;
  key.numbers(sharding.mesh.size(), sharding.placements.size());
  for (const MeshAxis& axis : sharding.mesh) key.text(axis.name).numbers(axis.size);
  for (const Placement& each : sharding.placements)
    key.numbers(each.kind, each.dim, each.split_factor, each.split).list(each.ends);
  return key.list(sharding.ranks).str();
}

std::size_t index_on_mesh(std::span<const MeshAxis> mesh, std::span<const std::int64_t> coordinate) {
  std::int64_t index = 0;
  for (std::size_t axis = 0; axis < mesh.size(); ++axis) index = index * mesh[axis].size + coordinate[axis];
  return static_cast<std::size_t>(index);
}

std::int64_t mesh_size(std::span<const MeshAxis> mesh) {
  std::int64_t size = 1;
  for (const MeshAxis& axis : mesh) size *= axis.size;
  return size;
}

bool has_axis_names(std::span<const MeshAxis> mesh) {
  return std::ranges::none_of(mesh, &std::string::empty, &MeshAxis::name);
}

std::vector<std::int64_t> mesh_ranks(const Sharding& sharding) {
  if (!sharding.ranks.empty()) return sharding.ranks;
  std::vector<std::int64_t> ranks(static_cast<std::size_t>(mesh_size(sharding.mesh)));
  std::iota(ranks.begin(), ranks.end(), std::int64_t{0});
  return ranks;
}

std::optional<std::int64_t> rank_of_placement(std::string_view placement) {
  constexpr std::string_view kLead = "rank:";
  if (!placement.starts_with(kLead)) return std::nullopt;
  placement.remove_prefix(kLead.size());
  const std::optional<std::int64_t> rank = take_natural(placement);
  return placement.empty() || placement.starts_with('/') ? rank : std::nullopt;
}

}  // namespace shard
