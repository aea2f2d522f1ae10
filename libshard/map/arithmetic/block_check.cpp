#include "libshard/map/arithmetic/block_check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <vector>

#include "libshard/core/box.h"
#include "libshard/core/checked.h"
#include "libshard/core/error.h"
#include "libshard/core/hash_table.h"
#include "libshard/core/sort_unique.h"
#include "libshard/map/documents/wrong.h"

namespace shard {

namespace {

using BlockNumbers = std::vector<std::int64_t>;
/// One entry per link: its rank, and for each dimension the box's begin in the logical tensor, its size, and its begin
/// in the stored tensor.
using BlockPlaces = std::vector<BlockNumbers>;

class BlockCheck {
 public:
  using RankOf = std::function<std::int64_t(const MapLink&)>;

  BlockCheck(const ModelMap& map, const NameMatch& match, const BlockedTensor& scale, const BlockedTensor& scaled,
             const RankOf& rank_of)
      : rule_(map.rule(match.rule)), scale_(scale), scaled_(scaled), rank_of_(rank_of) {
    for (const Expression& size : rule_.block->shape) {
      block_.push_back(map.variables().evaluate(size));
      if (block_.back() < 1) throw wrong(rule_.where + ": a block's size is not positive").found(block_.back());
    }
  }

  void run() const {
    check_shape();
    const auto has_rank = [&](const MapLink& link) { return rank_of_(link) >= 0; };
    // Ranks are compared only if both tensors have them in every link.
    const bool by_rank = std::ranges::all_of(scale_.links, has_rank) && std::ranges::all_of(scaled_.links, has_rank);
    // An element of the scale corresponds to a block. So the places of the scale in elements must equal those of the
    // scaled tensor in blocks.
    const BlockNumbers ones(block_.size(), 1);
    if (places_of(scale_, ones, by_rank) == places_of(scaled_, block_, by_rank)) return;
    throw wrong(fmt::format("{} shards '{}' differently from its scale '{}'", rule_.where, scaled_.name, scale_.name))
        .of_tensor(scale_.name)
        .because(fmt::format("an element of the scale is a block of [{}]", fmt::join(block_, ", ")));
  }

 private:
  void check_shape() const {
    BlockNumbers expected;
    const bool has_dims = scaled_.shape.size() == std::ssize(block_);
    for (int d = 0; has_dims && d < scaled_.shape.size(); ++d) {
      expected.push_back(ceil_div(scaled_.shape[d], block_[static_cast<std::size_t>(d)]));
    }
    if (has_dims && std::ranges::equal(scale_.shape, expected)) return;
    throw wrong(fmt::format("{}: '{}' does not have one element for each block of '{}'", rule_.where, scale_.name,
                            scaled_.name))
        .of_tensor(scale_.name)
        .because(fmt::format("'{}' has the shape {}, blocks are [{}]", scaled_.name, to_string(scaled_.shape),
                             fmt::join(block_, ", ")))
        .expected(to_string(expected))
        .found(to_string(scale_.shape));
  }

  Error inside_block(int dim) const {
    return wrong(
               fmt::format("cannot map '{}': a shard ends inside a block of its scale '{}'", scaled_.name, scale_.name))
        .of_tensor(scaled_.name)
        .because(fmt::format("{} defines blocks of [{}]; the tensor is sharded along dimension {}", rule_.where,
                             fmt::join(block_, ", "), dim));
  }

  /// The places of all links in units of `unit`, sorted and without duplicates. \throws Error kInvalidArgument  a link
  /// begins or ends inside a unit
  BlockPlaces places_of(const BlockedTensor& tensor, const BlockNumbers& unit, bool by_rank) const {
    BlockPlaces places;
    for (const MapLink& link : tensor.links) {
      BlockNumbers place{by_rank ? rank_of_(link) : -1};
      for (int d = 0; d < tensor.shape.size(); ++d) {
        const std::int64_t step = unit[static_cast<std::size_t>(d)], whole = tensor.shape[d];
        const std::int64_t offset = link.is_whole ? 0 : link.box.offsets[d];
        const std::int64_t size = link.is_whole ? whole : link.box.sizes[d];
        const std::int64_t begin = link.is_whole ? 0 : link.box.begin[static_cast<int>(link.box.axis[d])];
        // The last block of a tensor may be shorter than the others. A box with a larger step than 1 would split all.
        const bool ends_well = (offset + size) % step == 0 || offset + size == whole;
        const bool is_spread = !link.is_whole && link.box.step[d] != 1 && step != 1;
        if (offset % step != 0 || begin % step != 0 || !ends_well || is_spread) throw inside_block(d);
        place.insert(place.end(), {offset / step, ceil_div(size, step), begin / step});
      }
      places.push_back(std::move(place));
    }
    sort_unique(places);
    return places;
  }

  const MapRule& rule_;
  const BlockedTensor &scale_, &scaled_;
  const RankOf& rank_of_;
  BlockNumbers block_;
};

}  // namespace

void check_blocks(const ModelMap& map, std::span<const BlockedTensor> tensors,
                  const std::function<std::int64_t(const MapLink&)>& rank_of) {
  const auto has_block = [](const MapRule& rule) { return rule.block.has_value(); };
  if (std::ranges::none_of(map.document().rules, has_block)) return;
  HashMap<std::string_view, std::size_t> index_of;
  for (std::size_t i = 0; i < tensors.size(); ++i) index_of.try_emplace(tensors[i].name, i);
  const auto is_there = [&](const std::string& name) { return index_of.contains(name); };
  for (const BlockedTensor& tensor : tensors) {
    for (const NameMatch& match : map.match_logical(tensor.name, is_there)) {
      const MapRule& rule = map.rule(match.rule);
      if (!rule.block) continue;
      const NameTemplate& of = rule.block->of[match.segment];
      const std::vector<std::string>& names = rule.logical[match.segment].placeholders();
      std::vector<std::string_view> values;
      for (const std::string& name : of.placeholders()) {
        values.emplace_back(match.values[static_cast<std::size_t>(std::ranges::find(names, name) - names.begin())]);
      }
      const std::string scaled = of.fill(values);
      const std::size_t* const found = index_of.find(scaled);
      if (found == nullptr) {
        throw Error(ErrorCode::kNotFound,
                    fmt::format("the source lacks '{}', whose scale is '{}'", scaled, tensor.name))
            .of_tensor(scaled)
            .because(fmt::format("{} defines it as the scale", rule.where));
      }
      BlockCheck(map, match, tensor, tensors[*found], rank_of).run();
    }
  }
}

}  // namespace shard
