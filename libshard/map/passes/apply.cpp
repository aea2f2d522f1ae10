#include "libshard/map/passes/apply.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>

#include "libshard/catalog/catalog_builder.h"
#include "libshard/core/box.h"
#include "libshard/core/checked.h"
#include "libshard/core/error.h"
#include "libshard/core/hash_table.h"
#include "libshard/map/arithmetic/block_check.h"
#include "libshard/map/arithmetic/flat_buffers.h"
#include "libshard/map/documents/wrong.h"
#include "libshard/map/matching/file_names.h"
#include "libshard/map/matching/map_names.h"
#include "libshard/map/passes/unmatched.h"

namespace shard {

namespace {

/// Logical tensors from which one stored tensor is built.
struct LogicalGroup {
  struct Member {
    std::vector<std::int64_t> stack;
    std::size_t segment;
    std::uint32_t selected;
  };
  std::size_t rule = 0;
  NameValues values{};
  std::vector<Member> members{};
};

}  // namespace

/// Builds an AppliedMap.
class Applying {
 public:
  Applying(const Catalog& source, const Selection& selection, const ModelMap& map, bool flat_only, AppliedMap& made)
      : source_(source),
        given_(selection),
        map_(map),
        names_(map),
        use_(map),
        made_(made),
        arena_(*made.stored_.arena),
        is_on_paper_(flat_only) {
    for (std::size_t i = 0; flat_only && i < map.document().rules.size(); ++i) {
      if (!map.rule(i).family) use_.add(i);
    }
  }

  void run() {
    refuse_ranks();
    begin_catalog();
    UnmatchedTensors unmatched;
    for (std::uint32_t i = 0; i < given_.tensors.size(); ++i) {
      const SelectedTensor& tensor = given_.tensors[i];
      made_.entries_.push_back({tensor.name, source_.tensors[tensor.source].shape, tensor.dtype, tensor.source});
      names_there_.insert(std::string(tensor.name));
    }
    for (std::uint32_t i = 0; i < given_.tensors.size(); ++i) {
      if (take(i)) continue;
      const SelectedTensor& tensor = given_.tensors[i];
      map_.document().copies_unmatched ? copy(i) : unmatched.add(tensor.source, tensor.name);
    }
    unmatched.check(source_);
    made_.warnings_ = use_.check();
    for (const LogicalGroup& group : groups_) store(group);
    store_buffers();
    check_all_stored();
    check_blocks();
    select_all();
  }

 private:
  /// A logical tensor is one tensor for all ranks, so an entry of a single rank cannot be mapped.
  void refuse_ranks() const {
    const auto is_one_ranks = [&](const SelectedTensor& tensor) { return source_.tensors[tensor.source].rank >= 0; };
    const auto found = std::ranges::find_if(given_.tensors, is_one_ranks);
    if (found == given_.tensors.end()) return;
    throw Error(ErrorCode::kUnsupported, fmt::format("cannot map '{}': its values differ between ranks", found->name))
        .of_tensor(found->name)
        .suggest(Remedy::kExclude, std::string(found->name));
  }

  void begin_catalog() {
    Catalog& stored = made_.stored_;
    stored.format = source_.format;
    stored.files.push_back({"", 0, -1});
    stored.locations = source_.locations;
    stored.metadata = source_.metadata;
    stored.warnings = source_.warnings;
    stored.world_size = source_.world_size;
    stored.rank_files = source_.rank_files;
    stored.objects = source_.objects;
    stored.borrowed = source_.borrowed;
    stored.borrowed.insert(stored.borrowed.end(), {source_.arena, given_.arena});
    made_.selection_.objects = given_.objects;
    made_.selection_.renamed = true;
  }

  /// Adds the tensor to the groups of its rules. \returns false if no rule matches, except aliases
  bool take(std::uint32_t selected) {
    const std::vector<NameMatch> matches = map_.match_logical(
        given_.tensors[selected].name, [this](const std::string& name) { return names_there_.contains(name); });
    const SelectedTensor& tensor = given_.tensors[selected];
    bool has_own = false;
    for (const NameMatch& match : matches) {
      const MapRule& rule = map_.rule(match.rule);
      has_own = has_own || !rule.is_alias;
      made_.entries_[selected].is_dropped = rule.drops && matches.size() == 1;
      use_.add(match.rule);
      if (rule.drops) continue;
      set_dtype(selected, rule);
      if (!rule.is_alias) {  // An alias has the values of its tensor.
        made_.entries_[selected].factors = map_.factors_of(rule, tensor.name, source_.tensors[tensor.source].dtype);
      }
      auto [values, stack] = names_.values_of_logical(match);
      const auto [index, is_new] =
          group_of_.try_emplace(GroupKey{match.rule, values}, static_cast<std::uint32_t>(groups_.size()));
      if (is_new) groups_.push_back({match.rule, std::move(values)});
      groups_[index].members.push_back({std::move(stack), match.segment, selected});
    }
    return has_own;
  }

  /// Sets the rule's dtype for the stored tensor. \throws Error  there is no conversion to it, or two rules need
  /// different dtypes
  void set_dtype(std::uint32_t selected, const MapRule& rule) {
    DType& dtype = made_.entries_[selected].dtype;
    if (!rule.dtype || dtype == *rule.dtype) return;
    const SelectedTensor& tensor = given_.tensors[selected];
    if (dtype != tensor.dtype || rule.is_alias) {
      throw wrong(
          fmt::format("{} stores '{}' with a different dtype from the rule of its name", rule.where, tensor.name))
          .of_tensor(tensor.name);
    }
    if (!is_float(dtype) || !is_float(*rule.dtype) || !is_castable(dtype) || !is_castable(*rule.dtype)) {
      throw Error(ErrorCode::kUnsupported, fmt::format("{} cannot convert '{}' from {} to {}", rule.where, tensor.name,
                                                       dtype_name(dtype), dtype_name(*rule.dtype)))
          .of_tensor(tensor.name);
    }
    dtype = *rule.dtype;
  }

  /// Stores the tensor unchanged on every rank.
  void copy(std::uint32_t selected) {
    const SelectedTensor& tensor = given_.tensors[selected];
    for (std::int64_t rank = 0; rank < map_.ranks(); ++rank) {
      const std::uint32_t index =
          add_stored(rank, tensor.name, tensor.path, made_.entries_[selected].shape, tensor.dtype);
      made_.entries_[selected].links.push_back({.stored = index, .is_whole = true});
    }
  }

  void check_new(std::string key, std::string_view name) {
    if (keys_there_.insert(std::move(key))) return;
    throw wrong(fmt::format("cannot map the tensors: two stored ones have the name '{}'", name)).of_tensor(name);
  }

  /// Adds a stored tensor. \returns its index.
  std::uint32_t add_stored(std::int64_t rank, std::string_view name, Path path, Dims shape, DType dtype) {
    check_new(fmt::format("{} {}", rank, name), name);
    const std::int32_t own_rank = map_.ranks() > 1 ? static_cast<std::int32_t>(rank) : -1;
    CatalogBuilder builder(made_.stored_);
    const std::uint32_t storage = builder.add_storage({.bytes = checked_bytes(checked_numel(shape), dtype)});
    const std::uint32_t index = builder.begin(name, path, dtype, shape);
    builder.tensor().rank = own_rank;
    builder.add_whole(builder.add_row_major(storage, shape, dtype, own_rank));
    return index;
  }

  /// Stores the tensor of a group on each rank that has a part of it.
  void store(const LogicalGroup& group) {
    RuleTensors tensors{group.rule, {}, positions(group)};
    const std::vector<std::uint32_t> members = members_in_order(group, tensors);
    const DType dtype = made_.entries_[members.front()].dtype;
    const std::size_t segments = map_.rule(group.rule).logical.size();
    for (std::size_t i = 0; i < members.size(); ++i) check_member(tensors, i % segments, members[i], dtype);
    bool is_stored = false;
    for (std::int64_t rank = 0; rank < map_.ranks(); ++rank) {
      is_stored = store_part(group, tensors, members, rank) || is_stored;
    }
    if (is_stored) return;
    const SelectedTensor& first = given_.tensors[members.front()];
    throw wrong(
        fmt::format("cannot map '{}': {} does not store it on any rank", first.name, map_.rule(group.rule).where))
        .of_tensor(first.name);
  }

  /// Adds a rank's part of the group's stored tensor. \returns whether the rank has a part.
  bool store_part(const LogicalGroup& group, const RuleTensors& tensors, const std::vector<std::uint32_t>& members,
                  std::int64_t rank) {
    const std::vector<std::int64_t> coordinate = map_.coordinate_of(rank);
    const MapRule& rule = map_.rule(group.rule);
    if (!is_on(map_, rule, coordinate) || !names_.is_at(group.rule, group.values, coordinate)) return false;
    // The ranks on the axis of flat buffers share one buffer, so its local tensors are listed once.
    if (rule.family && coordinate[map_.document().flatten->axis] != 0) return false;
    const MapNames::StackRange stack = names_.stack_at(group.rule, tensors.stack, coordinate);
    const RankPart part = part_of_rank(map_, tensors, coordinate, stack.begin, stack.size, arena_);
    const std::string name = names_.stored_name(group.rule, group.values);
    SelectedTensor first = given_.tensors[members.front()];
    first.dtype = made_.entries_[members.front()].dtype;
    const Dims shape = arena_.dims(part.shape);
    const std::uint32_t index =
        rule.family ? add_local({*rule.family, name, rank, members.front(), shape, first.dtype})
                    : add_stored(rank, arena_.copy(name), name == first.name ? first.path : Path(), shape, first.dtype);
    for (const MapBox& box : part.boxes) {
      AppliedMap::Entry& entry = made_.entries_[members[box.member]];
      entry.links.push_back({.stored = index, .is_flat = rule.family.has_value(), .box = box});
      entry.is_compared = entry.is_compared && rule.reduce == ReduceRule::kEqual;
    }
    if (!part.has_padding) return true;
    const MapLink link{.stored = index, .is_flat = rule.family.has_value(), .box = padding_box(part, arena_)};
    add_padding(arena_.copy(name), link, first.dtype, rule.pad->fill == MapPad::Fill::kZero);
    return true;
  }

  /// The number of positions of each stacked index, from the document or from the names.
  std::vector<std::int64_t> positions(const LogicalGroup& group) const {
    const std::vector<MapStack>& stack = map_.rule(group.rule).stack;
    std::vector<std::int64_t> counts;
    for (std::size_t i = 0; i < stack.size(); ++i) {
      std::int64_t count = 0;
      for (const LogicalGroup::Member& member : group.members) count = std::max(count, member.stack[i] + 1);
      const std::int64_t stated = names_.stated_count(stack[i].index).value_or(count);
      if (count > stated) {
        throw wrong(fmt::format("cannot map '{}': the map gives index '{}' {} values, but the names have more",
                                names_.stored_name(group.rule, group.values), stack[i].index, stated));
      }
      counts.push_back(stated);
      if (counts.back() > count) throw missing(group, std::vector<std::int64_t>(stack.size(), counts.back() - 1), 0);
    }
    return counts;
  }

  Error missing(const LogicalGroup& group, std::span<const std::int64_t> stack, std::size_t segment) const {
    const std::string name = names_.logical_name(group.rule, segment, group.values, stack);
    return Error(ErrorCode::kNotFound, fmt::format("the source lacks '{}'", name))
        .of_tensor(name)
        .because(fmt::format("{1} builds '{0}' from it", names_.stored_name(group.rule, group.values),
                             map_.rule(group.rule).where));
  }

  /// The members sorted by position, then segment. \throws Error kNotFound  one is missing
  std::vector<std::uint32_t> members_in_order(const LogicalGroup& group, const RuleTensors& tensors) const {
    const std::size_t segments = map_.rule(group.rule).logical.size();
    const std::int64_t wanted = tensors.stacked() * static_cast<std::int64_t>(segments);
    std::vector<LogicalGroup::Member> sorted = group.members;
    std::ranges::sort(sorted, [](const LogicalGroup::Member& a, const LogicalGroup::Member& b) {
      return a.stack != b.stack ? a.stack < b.stack : a.segment < b.segment;
    });
    std::vector<std::uint32_t> members;
    std::vector<std::int64_t> at(tensors.stack.size());
    for (std::int64_t i = 0; i < wanted; ++i) {
      const std::size_t segment = static_cast<std::size_t>(i) % segments;
      set_index<std::int64_t>(at, tensors.stack, i / static_cast<std::int64_t>(segments));
      const auto n = static_cast<std::size_t>(i);
      if (n >= sorted.size() || sorted[n].stack != at || sorted[n].segment != segment)
        throw missing(group, at, segment);
      members.push_back(sorted[n].selected);
    }
    return members;
  }

  /// Checks that all members of one segment have one shape, and that all members have one dtype.
  void check_member(RuleTensors& tensors, std::size_t segment, std::uint32_t selected, DType dtype) const {
    const SelectedTensor& tensor = given_.tensors[selected];
    const Dims shape = made_.entries_[selected].shape;
    if (tensors.shapes.size() <= segment) tensors.shapes.emplace_back(shape.begin(), shape.end());
    const MapRule& rule = map_.rule(tensors.rule);
    if (!std::ranges::equal(tensors.shapes[segment], shape)) {
      throw wrong(fmt::format("{} cannot stack '{}': its shape is different", rule.where, tensor.name))
          .of_tensor(tensor.name)
          .expected(to_string(tensors.shapes[segment]))
          .found(to_string(shape));
    }
    if (made_.entries_[selected].dtype == dtype) return;
    throw wrong(fmt::format("{} cannot join '{}' with others: its dtype is different", rule.where, tensor.name))
        .of_tensor(tensor.name)
        .expected(dtype_name(dtype))
        .found(dtype_name(tensor.dtype))
        .suggest(Remedy::kCast, tensor.name);
  }

  /// \param is_checked  whether a reader compares the padding with zeros.
  void add_padding(std::string_view name, const MapLink& link, DType dtype, bool is_checked) {
    AppliedMap::Entry entry{name, link.box.sizes, dtype, static_cast<std::uint32_t>(made_.paddings_.size()), true};
    entry.is_compared = is_checked;
    entry.links.push_back(link);
    made_.entries_.push_back(std::move(entry));
    made_.paddings_.push_back({link.box.sizes, dtype});
  }

  /// Adds a local tensor for flat buffers. \returns its number.
  std::uint32_t add_local(FlatLocal local) {
    check_new(fmt::format("{} {} {}", local.family, local.rank, local.key), local.key);
    locals_.push_back(std::move(local));
    return static_cast<std::uint32_t>(locals_.size() - 1);
  }

  /// Stores the buffers that contain local tensors.
  void store_buffers() {
    if (locals_.empty()) return;
    auto flat = std::make_unique<const FlatBuffers>(map_, std::move(locals_));
    made_.first_buffer_ = static_cast<std::uint32_t>(made_.stored_.tensors.size());
    for (const FlatBuffer& buffer : flat->buffers()) {
      const Dims shape = arena_.dims(std::array{buffer.size});
      add_stored(buffer.rank, arena_.copy(buffer.name), {}, shape, buffer.dtype);
    }
    for (const FlatPlace& place : flat->padding()) {
      const FlatBuffer& buffer = flat->buffers()[place.buffer];
      const MapLink link{.stored = made_.first_buffer_ + place.buffer,
                         .box = run_box(place.first, place.count, arena_)};
      add_padding(arena_.copy(buffer.name), link, buffer.dtype, map_.document().flatten->checks_padding);
    }
    made_.flat_ = std::move(flat);
  }

  /// Checks that all elements are stored. Boxes of one tensor are equal, as replicas, or do not overlap.
  void check_all_stored() const {
    for (const AppliedMap::Entry& entry : made_.entries_) {
      if (entry.is_padding || entry.is_dropped || std::ranges::any_of(entry.links, &MapLink::is_whole)) continue;
      const std::int64_t all = checked_numel(entry.shape), stored = elements_in(entry.links);
      if (stored >= all) continue;
      throw wrong(fmt::format("cannot map '{}': the map stores {} of its {} elements", entry.name, stored, all))
          .of_tensor(entry.name);
    }
  }

  /// The number of elements in different boxes.
  static std::int64_t elements_in(std::span<const MapLink> links) {
    std::vector<const MapBox*> boxes;
    for (const MapLink& link : links) boxes.push_back(&link.box);
    const auto compare = [](const MapBox* a, const MapBox* b) {
      const auto order = std::lexicographical_compare_three_way(a->offsets.begin(), a->offsets.end(),
                                                                b->offsets.begin(), b->offsets.end());
      return order != 0 ? order < 0 : std::ranges::lexicographical_compare(a->sizes, b->sizes);
    };
    std::ranges::sort(boxes, compare);
    std::int64_t elements = 0;
    for (std::size_t i = 0; i < boxes.size(); ++i) {
      if (i == 0 || compare(boxes[i - 1], boxes[i])) elements = checked_add(elements, checked_numel(boxes[i]->sizes));
    }
    return elements;
  }

  void check_blocks() const {
    std::vector<BlockedTensor> tensors;
    for (const AppliedMap::Entry& entry : made_.entries_) {
      if (!entry.is_padding && !entry.is_dropped) tensors.push_back({entry.name, entry.shape, entry.links});
    }
    shard::check_blocks(map_, tensors, [this](const MapLink& link) -> std::int64_t {
      if (link.is_flat) return made_.flat_->locals()[link.stored].rank;
      return made_.stored_.tensors[link.stored].rank;
    });
  }

  /// Selects all tensors, sorted by name as make_target needs them.
  void select_all() {
    Catalog& stored = made_.stored_;
    stored.files.front().bytes = stored.stored_bytes();
    std::vector<SelectedTensor>& tensors = made_.selection_.tensors;
    for (std::uint32_t i = 0; i < stored.tensors.size(); ++i) {
      tensors.push_back({i, stored.tensors[i].dtype, stored.tensors[i].name, stored.tensors[i].path});
    }
    std::ranges::stable_sort(tensors, {}, &SelectedTensor::name);
    made_.ranks_ = map_.ranks();
    if (is_on_paper_) return;
    made_.rank_files_ = rank_file_names(map_);
  }

  const Catalog& source_;
  const Selection& given_;
  const ModelMap& map_;
  const MapNames names_;
  RuleUse use_;
  AppliedMap& made_;
  Arena& arena_;
  std::vector<LogicalGroup> groups_;
  HashMap<GroupKey, std::uint32_t, GroupKeyHash> group_of_;
  HashSet<std::string> keys_there_;  ///< The rank and name of each stored tensor.
  std::vector<FlatLocal> locals_;    ///< The tensors that are stored in flat buffers.
  HashSet<std::string> names_there_;
  bool is_on_paper_;  ///< Whether the result is only used to find the layout, and nothing will be written.
};

AppliedMap::AppliedMap(const Catalog& source, const Selection& selection, const ModelMap& map, bool flat_only) {
  Applying(source, selection, map, flat_only, *this).run();
}

std::vector<MapComputed> AppliedMap::computed() const {
  std::vector<MapComputed> all;
  for (const Entry& entry : entries_) {
    if (!entry.is_padding && !entry.is_dropped && entry.factors.changes()) all.push_back({entry.source, entry.factors});
  }
  return all;
}

Catalog AppliedMap::ranked_target(std::string_view format, std::int64_t max_file_bytes) const {
  Catalog target;
  target.format = format;
  target.metadata = stored_.metadata;
  target.locations = stored_.locations;
  target.borrowed = stored_.borrowed;
  target.borrowed.insert(target.borrowed.end(), {stored_.arena, selection_.arena});
  target.world_size = ranks_;
  std::vector<std::uint32_t> file_of(static_cast<std::size_t>(ranks_), kNoIndex);  // The last file of each rank.
  std::vector<std::int64_t> bytes_of(file_of.size());
  CatalogBuilder builder(target);
  for (const SelectedTensor& selected : selection_.tensors) {
    Tensor tensor = stored_.tensors[selected.source];
    StoredTensor stored = stored_.stored_of(tensor);
    Storage storage = stored_.storages[stored.storage];
    const auto rank = static_cast<std::size_t>(std::max(tensor.rank, 0));
    // A rank starts another file when the next tensor does not fit. A tensor is never divided between files.
    if (file_of[rank] == kNoIndex || bytes_of[rank] + storage.bytes > max_file_bytes) {
      file_of[rank] = static_cast<std::uint32_t>(target.files.size());
      bytes_of[rank] = 0;
      target.files.push_back({rank_files_[rank], 0, static_cast<int>(rank)});
    }
    bytes_of[rank] += storage.bytes;
    storage.file = file_of[rank];
    tensor.source = selected.source;
    stored.storage = builder.add_storage(storage);
    builder.begin(tensor);
    builder.add_whole(builder.add_stored(stored));
  }
  const auto idle = std::ranges::find(file_of, kNoIndex);
  if (idle == file_of.end()) return target;
  throw Error(ErrorCode::kUnsupported,
              fmt::format("cannot write a file for rank {}: the map stores nothing on it", idle - file_of.begin()));
}

Catalog AppliedMap::plan_target(const Catalog& placed, std::uint32_t first_padding) const {
  Catalog target;
  target.format = placed.format;
  target.files = placed.files;
  target.storages = placed.storages;
  target.stored = placed.stored;
  target.borrowed = placed.borrowed;
  target.borrowed.push_back(placed.arena);
  std::vector<std::uint32_t> placed_of(stored_.tensors.size(), kNoIndex);
  for (std::uint32_t i = 0; i < placed.tensors.size(); ++i) placed_of[placed.tensors[i].source] = i;
  const std::vector<int> singles = single_dims(placed);
  // Buffers are the last stored tensors, from first_buffer_ on.
  const std::span<const std::uint32_t> buffer_of = std::span(placed_of).subspan(flat_ ? first_buffer_ : 0);
  const LinkTargets targets{placed, singles, placed_of, flat_.get(), buffer_of};
  CatalogBuilder builder(target);
  std::vector<Chunk> chunks;
  for (const Entry& entry : entries_) {
    if (entry.is_dropped) continue;
    builder.begin(entry.name, {}, entry.dtype, entry.shape);
    builder.tensor().source = entry.is_padding ? first_padding + entry.source : entry.source;
    chunks.clear();
    append_linked(targets, entry.links, *target.arena, chunks);
    for (const Chunk& chunk : chunks) builder.add_chunk(chunk);
  }
  return target;
}

}  // namespace shard
