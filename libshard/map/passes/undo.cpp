#include "libshard/map/passes/undo.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "libshard/catalog/catalog_builder.h"
#include "libshard/core/box.h"
#include "libshard/core/checked.h"
#include "libshard/core/error.h"
#include "libshard/core/hash_table.h"
#include "libshard/core/sort_unique.h"
#include "libshard/map/arithmetic/block_check.h"
#include "libshard/map/arithmetic/flat_buffers.h"
#include "libshard/map/documents/wrong.h"
#include "libshard/map/matching/map_names.h"
#include "libshard/map/passes/undo_flat.h"
#include "libshard/map/passes/unmatched.h"

namespace shard {

namespace {

// Derives the shapes of logical tensors from those of stored tensors.

/// Reconstructs sizes before sharding and padding from the stored sizes.
class ShapeFinder {
 public:
  using ShapeAt = std::function<std::span<const std::int64_t>(std::span<const std::int64_t>)>;

  /// \param shape_at  returns the stored shape at a coordinate of the mesh
  ShapeFinder(const ModelMap& map, std::size_t rule, std::span<const std::int64_t> coordinate, const ShapeAt& shape_at)
      : map_(map), rule_(map.rule(rule)), coordinate_(coordinate.begin(), coordinate.end()), shape_at_(shape_at) {
    tensors_.rule = rule;
  }

  /// The stack sizes are those of the stored tensor.
  /// \throws Error kInvalidArgument  the document does not define enough, or contradicts the shapes
  RuleTensors run() {
    const Sizes base = unstacked(coordinate_, &tensors_.stack);
    const bool keeps = rule_.pad && rule_.pad->fill == MapPad::Fill::kKeep;
    if (keeps && rule_.pad->dim < std::ssize(base)) tensors_.padded = whole_size(rule_.pad->dim);
    tensors_.shapes.assign(rule_.logical.size(), Sizes());
    for (int d = 0; d < std::ssize(base); ++d) {
      const bool is_concat = rule_.concat && rule_.concat->dim == d;
      for (std::size_t i = 0; i < tensors_.shapes.size(); ++i) {
        tensors_.shapes[i].push_back(is_concat ? segment_size(d, i) : true_size(d));
      }
    }
    for (std::size_t i = 0; i < tensors_.shapes.size(); ++i) {
      tensors_.shapes[i] = permuted(rule_.permute[i], std::move(tensors_.shapes[i]), rule_.where);
    }
    return std::move(tensors_);
  }

 private:
  /// The stored shape at a coordinate before dimensions were stacked or divided. The sizes of stacked ones are appended
  /// to `stack`.
  Sizes unstacked(std::span<const std::int64_t> coordinate, std::vector<std::int64_t>* stack) const {
    const std::span<const std::int64_t> stored = shape_at_(coordinate);
    Sizes shape(stored.begin(), stored.end());
    for (std::size_t i = rule_.stack.size(); i-- > 0;) {
      const int dim = rule_.stack[i].dim;
      if (dim >= std::ssize(shape)) {
        throw wrong(
            fmt::format("{} stacks dimension {}, which a tensor of {} lacks", rule_.where, dim, to_string(stored)));
      }
      if (stack != nullptr) stack->insert(stack->begin(), shape[static_cast<std::size_t>(dim)]);
      shape.erase(shape.begin() + dim);
    }
    if (!rule_.unflatten) return shape;
    const auto dim = static_cast<std::size_t>(rule_.unflatten->dim);
    if (dim + 1 >= shape.size()) {
      throw wrong(
          fmt::format("{} divides dimension {}, which a tensor of {} lacks", rule_.where, dim, to_string(stored)));
    }
    shape[dim] = checked_mul(shape[dim], shape[dim + 1]);
    shape.erase(shape.begin() + rule_.unflatten->dim + 1);
    return shape;
  }

  /// The size of a dimension over all ranks that have parts of it, including padding.
  std::int64_t whole_size(int d) const {
    // Visits the coordinates on the axes that divide this dimension. On the other axes, the parts are replicas or
    // divide other dimensions.
    Sizes at = coordinate_, counts(at.size(), 1);
    for (const MapCut& cut : rule_.shard) {
      if (cut.dim == d) counts[cut.axis] = map_.mesh()[cut.axis];
    }
    Sizes index(at.size());
    std::int64_t size = 0;
    do {
      for (std::size_t i = 0; i < at.size(); ++i) {
        if (counts[i] > 1) at[i] = index[i];
      }
      const Sizes shape = unstacked(at, nullptr);
      if (d >= std::ssize(shape)) throw wrong(rule_.where + ": ranks store tensors of different dimensions");
      size = checked_add(size, shape[static_cast<std::size_t>(d)]);
    } while (!index.empty() && next_index<std::int64_t>(index, counts) >= 0);
    return size;
  }

  /// A size that the document states.
  std::int64_t size_of(const Expression& expression) const {
    const std::int64_t size = map_.variables().evaluate(expression);
    if (size >= 0) return size;
    throw wrong(fmt::format("{}: '{}' is not a size", rule_.where, expression.text())).found(size);
  }

  /// The stated size of a segment, or the sum of the widths of its parts.
  std::optional<std::int64_t> stated_size(std::size_t segment) const {
    const MapConcat& concat = *rule_.concat;
    if (!concat.sizes.empty()) return size_of(concat.sizes[segment]);
    if (concat.widths.empty() || concat.widths[segment].empty()) return std::nullopt;
    std::int64_t size = 0;
    for (const Expression& width : concat.widths[segment]) {
      const std::int64_t number = map_.variables().evaluate(width);
      if (number < 0) throw wrong(rule_.where + ": a width is negative").found(number);
      if (number > INT64_MAX - size) throw wrong(rule_.where + ": the sum of its widths does not fit 63 bits");
      size += number;
    }
    return size;
  }

  /// The size of a dimension without padding, which only the document can state.
  std::int64_t true_size(int d) const {
    const bool is_padded = rule_.pad && rule_.pad->dim == d;
    if (!is_padded) return whole_size(d);
    if (rule_.pad->true_size) return size_of(*rule_.pad->true_size);
    throw wrong(fmt::format("cannot undo {}: the document does not state the size of the tensor without its padding",
                            rule_.where))
        .because("its pad has no key 'true'");
  }

  /// The size of a segment along the concatenated dimension. The stored size is that of all segments, so more than one
  /// segment needs statements of the document.
  std::int64_t segment_size(int d, std::size_t segment) const {
    if (const std::optional<std::int64_t> stated = stated_size(segment)) return *stated;
    const std::size_t segments = rule_.logical.size();
    if (segments == 1) return true_size(d);
    if (!rule_.concat->is_equal) {
      throw wrong(fmt::format("cannot undo {}: the document does not state the sizes of its segments", rule_.where))
          .because("its concat has no key 'sizes'");
    }
    const std::int64_t whole = true_size(d), count = static_cast<std::int64_t>(segments);
    if (whole % count == 0) return whole / count;
    throw wrong(fmt::format("{} cannot divide {} into {} equal segments", rule_.where, whole, count)).found(whole);
  }

  const ModelMap& map_;
  const MapRule& rule_;
  Sizes coordinate_;
  const ShapeAt& shape_at_;
  RuleTensors tensors_;
};

/// The stored tensors of one rule and one set of values: one per rank of the mesh.
struct StoredGroup {
  std::size_t rule = 0;
  NameValues values{};
  std::int32_t rank = -1;               ///< The rank, if an entry belongs to one rank and there is no mesh.
  std::vector<std::uint32_t> stored{};  ///< By rank of the mesh, or kNoIndex.
};

}  // namespace

/// Builds an UndoneMap.
class Undoing {
 public:
  Undoing(const Catalog& stored, const ModelMap& map, UndoneMap& made)
      : stored_(stored), map_(map), names_(map), use_(map), made_(made) {
    if (map.document().flatten) flat_.emplace(stored, map, *made.arena_);
    for (std::size_t i = 0; i < map.document().rules.size(); ++i) {
      if (map.rule(i).family) use_.add(i);
    }
  }

  void run(const std::function<bool(std::string_view)>& leaves_out) {
    UnmatchedTensors unmatched;
    for (std::uint32_t i = 0; i < stored_.tensors.size(); ++i) {
      const Tensor& tensor = stored_.tensors[i];
      if (take(i)) continue;
      if (leaves_out && leaves_out(tensor.name)) {
        made_.left_out_.emplace_back(tensor.name);
      } else if (map_.document().copies_unmatched) {
        copy(i);
      } else {
        unmatched.add(i, tensor.name);
      }
    }
    unmatched.check(stored_);
    made_.warnings_ = use_.check();
    for (const StoredGroup& group : groups_) undo(group);
    if (flat_) undo_flat();
    finish();
  }

 private:
  bool has_mesh() const { return !map_.mesh().empty(); }

  /// Adds the tensor to its group, on each rank that has it. \returns false if no rule matches
  bool take(std::uint32_t index) {
    if (flat_ && flat_->take(index)) return true;
    const Tensor& tensor = stored_.tensors[index];
    const std::optional<NameMatch> match = map_.match_stored(tensor.name);
    if (!match) return false;
    use_.add(match->rule);
    if (map_.rule(match->rule).drops) return ++made_.dropped_, true;
    if (tensor.rank >= map_.ranks() && has_mesh()) {
      throw wrong(fmt::format("cannot map '{}' of rank {}: the map's mesh has {} ranks", tensor.name, tensor.rank,
                              map_.ranks()));
    }
    const MapRule& rule = map_.rule(match->rule);
    if (rule.dtype && tensor.dtype != *rule.dtype) {
      throw wrong(fmt::format("cannot map '{}': its dtype is not the one that {} stores", tensor.name, rule.where))
          .of_tensor(tensor.name)
          .expected(dtype_name(*rule.dtype))
          .found(dtype_name(tensor.dtype));
    }
    if (!rule.match.empty() && !has_mesh() && is_plain(rule)) {
      copy(index);
      made_.entries_.back().factors = map_.factors_of(rule, tensor.name, tensor.dtype);
      return true;
    }
    // A tensor without a rank is equal on all ranks.
    const std::int64_t first = has_mesh() ? std::max(tensor.rank, 0) : 0;
    const std::int64_t end = has_mesh() && tensor.rank < 0 ? map_.ranks() : first + 1;
    bool is_taken = false;
    for (std::int64_t rank = first; rank < end; ++rank) is_taken = take_on(index, *match, rank) || is_taken;
    return is_taken;
  }

  bool take_on(std::uint32_t index, const NameMatch& match, std::int64_t rank) {
    const Tensor& tensor = stored_.tensors[index];
    std::optional<NameValues> values = names_.values_of_stored(match, map_.coordinate_of(rank));
    if (!values) return false;
    StoredGroup& group = find_group(match.rule, std::move(*values), has_mesh() ? -1 : tensor.rank);
    std::uint32_t& place = group.stored[static_cast<std::size_t>(rank)];
    if (place != kNoIndex) throw held_twice(tensor.name, rank);
    place = index;
    return true;
  }

  static bool is_plain(const MapRule& rule) {
    return !rule.concat && rule.shard.empty() && !rule.pad && !rule.unflatten && !rule.permute[0].transposes &&
           rule.permute[0].rotary == MapPermute::Rotary::kNone;
  }

  StoredGroup& find_group(std::size_t rule, NameValues values, std::int32_t rank) {
    const auto [index, is_new] =
        group_of_.try_emplace(GroupKey{rule, values, rank}, static_cast<std::uint32_t>(groups_.size()));
    if (is_new) {
      groups_.push_back({rule, std::move(values), rank, {}});
      groups_.back().stored.resize(static_cast<std::size_t>(map_.ranks()), kNoIndex);
    }
    return groups_[index];
  }

  void copy(std::uint32_t index) {
    const Tensor& tensor = stored_.tensors[index];
    UndoneMap::Entry entry;
    entry.name = tensor.name;
    entry.path = tensor.path;
    entry.shape = tensor.shape;
    entry.dtype = tensor.dtype;
    entry.rank = tensor.rank;
    entry.links.push_back({.stored = index, .is_whole = true});
    made_.entries_.push_back(std::move(entry));
    ++made_.copied_;
  }

  std::int64_t rank_of(std::span<const std::int64_t> coordinate) const {
    std::int64_t rank = 0;
    for (std::size_t i = 0; i < coordinate.size(); ++i) rank = rank * map_.mesh()[i] + coordinate[i];
    return rank;
  }

  const Tensor& stored_at(const StoredGroup& group, std::int64_t rank) const {
    const std::uint32_t index = group.stored[static_cast<std::size_t>(rank)];
    if (index != kNoIndex) return stored_.tensors[index];
    throw part_missing(names_.stored_name(group.rule, group.values), rank);
  }

  /// Adds the logical tensors of a group and their links. Any rank's part can serve as the model for dtype and path.
  void undo(const StoredGroup& group) {
    const auto first = std::ranges::find_if(group.stored, [](std::uint32_t index) { return index != kNoIndex; });
    const Tensor& model = stored_.tensors[*first];
    try {
      const RuleTensors tensors = find_tensors(group, first - group.stored.begin());
      const std::size_t base = add_entries(group, tensors, model);
      HeldBoxes held;
      for (std::int64_t rank = 0; rank < map_.ranks(); ++rank) add_part(group, tensors, base, rank, held);
    } catch (Error& error) {
      throw error.tensor().empty() ? error.of_tensor(model.name) : error;
    }
  }

  RuleTensors find_tensors(const StoredGroup& group, std::int64_t first_rank) const {
    const auto shape_at = [&](std::span<const std::int64_t> coordinate) {
      return stored_at(group, rank_of(coordinate)).shape.span();
    };
    RuleTensors tensors = ShapeFinder(map_, group.rule, map_.coordinate_of(first_rank), shape_at).run();
    const std::vector<MapStack>& stack = map_.rule(group.rule).stack;
    for (std::size_t i = 0; i < stack.size(); ++i) {
      const std::optional<std::int64_t> count = names_.stated_count(stack[i].index);
      if (count) tensors.stack[i] = *count;  // The shape of the part shows whether this count fits.
    }
    return tensors;
  }

  /// Adds the logical tensors of a group. \returns the index of the first one
  std::size_t add_entries(const StoredGroup& group, const RuleTensors& tensors, const Tensor& model) {
    const std::size_t base = made_.entries_.size();
    const MapRule& rule = map_.rule(group.rule);
    std::vector<std::int64_t> at(tensors.stack.size());
    if (is_empty(tensors.stack)) return base;
    do {
      for (std::size_t segment = 0; segment < tensors.shapes.size(); ++segment) {
        made_.arena_->charge(Charge::kEntries);
        UndoneMap::Entry entry;
        entry.name = made_.arena_->copy(names_.logical_name(group.rule, segment, group.values, at));
        entry.shape = made_.arena_->dims(tensors.shapes[segment]);
        entry.dtype = model.dtype;
        entry.rank = group.rank;
        entry.is_alias = rule.is_alias;
        entry.compares_replicas = rule.reduce == ReduceRule::kEqual;
        entry.factors = map_.factors_of(rule, model.name, model.dtype);
        if (entry.name == model.name) entry.path = model.path;
        made_.entries_.push_back(std::move(entry));
      }
    } while (!at.empty() && next_index<std::int64_t>(at, tensors.stack) >= 0);
    return base;
  }

  /// The boxes that are equal on all ranks, including padding, which several ranks may add.
  using HeldBoxes = std::set<std::vector<std::int64_t>>;

  static std::vector<std::int64_t> key_of(const MapBox& box) {
    std::vector<std::int64_t> key{box.member};
    key.insert(key.end(), box.offsets.begin(), box.offsets.end());
    key.insert(key.end(), box.begin.begin(), box.begin.end());
    return key;
  }

  void add_part(const StoredGroup& group, const RuleTensors& tensors, std::size_t base, std::int64_t rank,
                HeldBoxes& held) {
    const std::vector<std::int64_t> coordinate = map_.coordinate_of(rank);
    const std::uint32_t index = group.stored[static_cast<std::size_t>(rank)];
    const bool is_held =
        is_on(map_, map_.rule(group.rule), coordinate) && names_.is_at(group.rule, group.values, coordinate);
    // A tensor without a rank was found on all ranks, including those to which the map assigns none.
    if (!is_held && (index == kNoIndex || stored_.tensors[index].rank < 0)) return;
    const Tensor& tensor = stored_at(group, rank);
    if (!is_held) {
      throw wrong(fmt::format("cannot map '{}': rank {} stores it, but the map does not assign it to that rank",
                              tensor.name, rank));
    }
    const MapNames::StackRange stack = names_.stack_at(group.rule, tensors.stack, coordinate);
    const RankPart part = part_of_rank(map_, tensors, coordinate, stack.begin, stack.size, *made_.arena_);
    check_same(tensor, part, group, tensors);
    // The ranks share one such tensor, so each of its boxes is linked once.
    const bool is_shared = tensor.rank < 0 && map_.ranks() > 1;
    const auto is_met = [&](const MapBox& box) { return is_shared && !held.insert(key_of(box)).second; };
    for (const MapBox& box : part.boxes) {
      if (is_met(box)) continue;
      made_.arena_->charge(Charge::kChunks);
      made_.entries_[base + box.member].links.push_back({.stored = index, .box = box});
    }
    if (!part.has_padding || map_.rule(group.rule).pad->fill == MapPad::Fill::kKeep) return;
    const MapBox padding = padding_box(part, *made_.arena_);
    if (!is_met(padding)) made_.paddings_.push_back({tensor.name, {.stored = index, .box = padding}});
  }

  void check_same(const Tensor& tensor, const RankPart& part, const StoredGroup& group,
                  const RuleTensors& tensors) const {
    if (!std::ranges::equal(tensor.shape, part.shape)) {
      throw wrong(fmt::format("cannot map '{}': its shape is not the one that {} produces", tensor.name,
                              map_.rule(group.rule).where))
          .of_tensor(tensor.name)
          .expected(to_string(part.shape))
          .found(to_string(tensor.shape));
    }
    const DType dtype = made_.entries_.empty() || tensors.stacked() == 0 ? tensor.dtype : made_.entries_.back().dtype;
    if (tensor.dtype != dtype) throw dtypes_differ(tensor.name, dtype, tensor.dtype);
  }

  /// Adds the tensors in flat buffers to the entries. The document or the checkpoint bounds their number, so no budget
  /// is needed here.
  void undo_flat() {
    std::vector<FlatUndo::Known> known;
    for (const UndoneMap::Entry& entry : made_.entries_) {
      if (entry.rank < 0) known.push_back({entry.name, entry.shape});
    }
    flat_->run(known);
    for (const auto& made : flat_->made()) {
      if (made.is_padding) {
        if (made.is_compared) made_.paddings_.push_back({made_.arena_->copy(made.name), made.links.front()});
        continue;
      }
      UndoneMap::Entry entry;
      entry.name = made_.arena_->copy(made.name);
      entry.shape = made_.arena_->dims(made.shape);
      entry.dtype = made.dtype;
      entry.compares_replicas = made.is_compared;
      entry.links = made.links;
      made_.entries_.push_back(std::move(entry));
    }
    made_.paper_ = flat_->paper();
    if (made_.paper_ == nullptr) return;
    made_.flat_ = flat_->buffers();
    made_.buffer_of_ = flat_->buffer_of();
  }

  /// Sorts the entries, and joins aliases with the tensors that they repeat.
  void finish() {
    std::vector<UndoneMap::Entry>& entries = made_.entries_;
    std::ranges::stable_sort(entries, [](const UndoneMap::Entry& a, const UndoneMap::Entry& b) {
      const int order = a.name.compare(b.name);
      return order != 0 ? order < 0 : a.rank != b.rank ? a.rank < b.rank : a.is_alias < b.is_alias;
    });
    std::size_t kept = 0;
    for (std::size_t i = 0; i < entries.size(); ++i) {
      UndoneMap::Entry& entry = entries[i];
      if (kept == 0 || entries[kept - 1].name != entry.name || entries[kept - 1].rank != entry.rank) {
        if (kept != i) entries[kept] = std::move(entry);
        ++kept;
        continue;
      }
      UndoneMap::Entry& first = entries[kept - 1];
      const bool is_same = entry.shape == first.shape && entry.dtype == first.dtype;
      if (!entry.is_alias || !is_same) {
        throw wrong(fmt::format("cannot map the checkpoint: two stored tensors produce '{}'", entry.name))
            .of_tensor(entry.name);
      }
      first.compares_replicas = first.compares_replicas && entry.compares_replicas;
      first.is_joined = true;
      std::ranges::move(entry.links, std::back_inserter(first.links));
    }
    entries.resize(kept);
    for (UndoneMap::Entry& entry : entries) {
      if (entry.is_alias) entry.factors = factors_of_aliased(entry);
    }
    check_blocks();
  }

  /// The arithmetic of an alias whose tensor is not in the source: that of the rule that would store the tensor.
  /// \pre entries are sorted
  MapFactors factors_of_aliased(const UndoneMap::Entry& entry) const {
    const auto is_there = [&](const std::string& name) {
      return std::ranges::binary_search(made_.entries_, std::string_view(name), {}, &UndoneMap::Entry::name);
    };
    for (const NameMatch& match : map_.match_logical(entry.name, is_there)) {
      const MapRule& rule = map_.rule(match.rule);
      if (!rule.is_alias) return map_.factors_of(rule, entry.name, entry.dtype);
    }
    return {};
  }

  void check_blocks() const {
    std::vector<BlockedTensor> tensors;
    for (const UndoneMap::Entry& entry : made_.entries_) tensors.push_back({entry.name, entry.shape, entry.links});
    shard::check_blocks(map_, tensors, [this](const MapLink& link) -> std::int64_t {
      return link.is_flat ? made_.flat_->locals()[link.stored].rank : stored_.tensors[link.stored].rank;
    });
  }

  const Catalog& stored_;
  const ModelMap& map_;
  const MapNames names_;
  RuleUse use_;
  UndoneMap& made_;
  std::optional<FlatUndo> flat_;
  std::vector<StoredGroup> groups_;
  HashMap<GroupKey, std::uint32_t, GroupKeyHash> group_of_;
};

UndoneMap::UndoneMap(const Catalog& stored, const ModelMap& map,
                     const std::function<bool(std::string_view)>& leaves_out)
    : arena_(std::make_shared<Arena>(stored.arena->budget())), singles_(single_dims(stored)) {
  std::int64_t data = 0;
  for (const File& file : stored.files) data += std::clamp<std::int64_t>(file.bytes, 0, kMostMappedData - data);
  arena_->earn(0, data);
  Undoing(stored, map, *this).run(leaves_out);
}

LinkTargets UndoneMap::targets_in(const Catalog& stored) const { return {stored, singles_, {}, flat_, buffer_of_}; }

std::vector<Chunk> UndoneMap::chunks_of(const Catalog& stored, const Padding& padding, Arena& arena) const {
  std::vector<Chunk> chunks;
  append_linked(targets_in(stored), std::span(&padding.link, 1), arena, chunks);
  return chunks;
}

std::vector<Chunk> UndoneMap::chunks_of(const Catalog& stored, const Entry& entry) const {
  std::vector<Chunk> chunks;
  append_linked(targets_in(stored), entry.links, *arena_, chunks);
  if (entry.is_joined) split_at_borders(stored, *arena_, chunks);
  return chunks;
}

Catalog UndoneMap::make_catalog(const Catalog& stored) const {
  Catalog logical = stored;
  logical.arena = arena_;
  logical.borrowed.push_back(stored.arena);
  logical.root = nullptr;
  logical.tensors.clear();
  logical.chunks.clear();
  logical.metadata.erase(kAliasesNote);
  logical.warnings.insert(logical.warnings.end(), warnings_.begin(), warnings_.end());
  CatalogBuilder builder(logical);
  for (const Entry& entry : entries_) {
    builder.begin(entry.name, entry.path, entry.dtype, entry.shape);
    for (const Chunk& chunk : chunks_of(stored, entry)) builder.add_chunk(chunk);
    Tensor& tensor = builder.tensor();
    tensor.rank = entry.rank;
    if (entry.links.size() == 1 && entry.links[0].is_whole) {
      tensor.sharding = stored.tensors[entry.links[0].stored].sharding;
      tensor.damaged = stored.tensors[entry.links[0].stored].damaged;
    }
  }
  validate_catalog(logical);
  return logical;
}

void UndoneMap::refresh(const Catalog& stored, std::span<const std::uint32_t> tensors, Catalog& logical) const {
  logical.storages = stored.storages;
  logical.stored = stored.stored;
  for (const std::uint32_t index : tensors) {
    std::ranges::copy(chunks_of(stored, entries_[index]), logical.chunks.begin() + logical.tensors[index].first_chunk);
  }
}

std::vector<MapComputed> UndoneMap::computed() const {
  std::vector<MapComputed> all;
  for (std::uint32_t i = 0; i < entries_.size(); ++i) {
    if (entries_[i].factors.changes()) all.push_back({i, entries_[i].factors});
  }
  return all;
}

std::vector<std::uint32_t> UndoneMap::stored_of(std::span<const std::uint32_t> tensors) const {
  std::vector<std::uint32_t> stored;
  for (const std::uint32_t tensor : tensors) {
    for (const MapLink& link : entries_[tensor].links) append_stored(link, stored);
  }
  sort_unique(stored);
  return stored;
}

std::vector<std::uint32_t> UndoneMap::stored_of(const Padding& padding) const {
  std::vector<std::uint32_t> stored;
  append_stored(padding.link, stored);
  sort_unique(stored);
  return stored;
}

/// The whole local tensor, so that its padding can be read with it.
void UndoneMap::append_stored(const MapLink& link, std::vector<std::uint32_t>& out) const {
  if (!link.is_flat) return out.push_back(link.stored);
  for (const FlatPlace& place : flat_->places_of(link.stored)) out.push_back(buffer_of_[place.buffer]);
}

}  // namespace shard
