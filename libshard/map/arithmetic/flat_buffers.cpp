#include "libshard/map/arithmetic/flat_buffers.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "libshard/catalog/layouts/flat_run.h"
#include "libshard/core/box.h"
#include "libshard/core/checked.h"
#include "libshard/core/error.h"
#include "libshard/core/parse_number.h"
#include "libshard/core/sort_unique.h"
#include "libshard/map/documents/wrong.h"

namespace shard {

namespace {

constexpr const char* kDigits = "[0-9]{1,18}";

Error too_many_orders() {
  return wrong("cannot use the layout document: the names of its flatten.order are too large");
}

bool has_buckets(const FlatFamily& family) {
  return std::ranges::find(family.stored.placeholders(), "bucket") != family.stored.placeholders().end();
}

/// Buffers are named by group and bucket. Other placeholders were replaced by variables before.
std::string buffer_name(const FlatFamily& family, const std::string& group, const std::string& bucket) {
  std::vector<std::string_view> values;
  for (const std::string& name : family.stored.placeholders()) values.emplace_back(name == "group" ? group : bucket);
  return family.stored.fill(values);
}

/// The arithmetic of the document's kind. `parts` is the number of ranks that share a buffer.
FlatRule rule_of_kind(const MapFlatten& flatten, std::int64_t parts, const MapVariables& variables) {
  const std::int64_t align = variables.evaluate(flatten.align);
  if (align < 1) throw wrong("the map's flatten.align is not a number of elements").found(align);
  std::optional<std::int64_t> bucket_size;
  if (flatten.bucket_size) bucket_size = variables.evaluate(*flatten.bucket_size);
  if (bucket_size.value_or(1) < 1) {
    throw wrong("the map's flatten.buckets is not a number of elements").found(*bucket_size);
  }
  switch (flatten.kind) {
    case FlatKind::kZero12:
      return FlatRule::zero12(parts);
    case FlatKind::kZero3:
      return FlatRule::zero3(parts);
    case FlatKind::kFsdp1:
      return FlatRule::fsdp1(parts, align);
    case FlatKind::kMcoreBucket:
      break;
  }
  return FlatRule::mcore(parts, bucket_size);
}

FlatRule rule_of(const ModelMap& map) {
  const MapFlatten& flatten = *map.document().flatten;
  FlatRule rule = rule_of_kind(flatten, map.mesh()[flatten.axis], map.variables());
  rule.max_pieces = kMaxFlatPieces;
  return rule;
}

/// Checks that every name that the document lists without placeholders is that of a tensor.
void check_listed(const MapFlatten& flatten, const HashSet<std::string>& keys) {
  const auto check = [&](const char* key, const std::string& name) {
    if (keys.contains(name)) return;
    throw wrong(
        fmt::format("the map's flatten.{} lists '{}', which is not the name of a tensor in flat buffers", key, name))
        .found(name);
  };
  for (const auto& item : flatten.order) {
    for (const NameTemplate& names : item) {
      if (names.placeholders().empty()) check("order", names.fill({}));
    }
  }
  for (const std::string& name : flatten.bucket_ends) check("buckets", name);
}

/// Appends the chunks of one piece of a tensor: the parts of the buffer's chunks that contain it, each as a few boxes
/// of the tensor.
void append_place(const Catalog& stored, const Tensor& buffer, Dims shape, const FlatPlace& place, Arena& arena,
                  std::vector<Chunk>& out) {
  const Dims row_major = row_major_strides(arena, shape);
  const std::span<const Chunk> chunks = stored.chunks_of(buffer);
  const auto end_of = [](const Chunk& chunk) { return chunk.offsets[0] + chunk.sizes[0]; };
  // A buffer's chunks are consecutive. Replicas are adjacent.
  auto chunk = std::ranges::upper_bound(chunks, place.first, {}, end_of);
  for (; chunk != chunks.end() && chunk->offsets[0] < place.first + place.count; ++chunk) {
    const std::int64_t from = std::max(place.first, chunk->offsets[0]);
    const std::int64_t to = std::min(place.first + place.count, end_of(*chunk)), step = chunk->strides[0];
    const std::int64_t at = chunk->first + (from - chunk->offsets[0]) * step;
    std::vector<std::int64_t> strides(row_major.begin(), row_major.end());
    // A run of row-major elements is not one box in general, but a few boxes. Each becomes a chunk whose strides are
    // row-major, in units of the buffer's stride.
    for (std::int64_t& stride : strides) stride *= step;
    for_each_box_of_run(
        shape, place.begin + from - place.first, to - from,
        [&](std::span<const std::int64_t> offsets, std::span<const std::int64_t> sizes, std::int64_t before) {
          Chunk part;
          part.offsets = arena.dims(offsets);
          part.sizes = arena.dims(sizes);
          part.strides = arena.dims(strides);
          part.first = at + before * step;
          part.stored = chunk->stored;
          out.push_back(part);
        });
  }
}

}  // namespace

FlatKeys::FlatKeys(const MapFlatten& flatten) : flatten_(flatten) {
  for (const std::string& group : flatten.groups) groups_.push_back(std::make_unique<RE2>(group, quiet_patterns()));
  for (std::size_t item = 0; item < flatten.order.size(); ++item) {
    for (std::size_t i = 0; i < flatten.order[item].size(); ++i) {
      const NameTemplate& names = flatten.order[item][i];
      const auto number = static_cast<std::int64_t>(item), of_item = static_cast<std::int64_t>(i);
      if (names.placeholders().empty()) {
        const std::string name = names.fill({});
        if (!plain_.try_emplace(name, std::vector{number, of_item}).is_new)
          throw wrong(fmt::format("the map's flatten.order lists '{}' twice", name)).found(name);
        continue;
      }
      const std::string pattern = names.pattern([](const std::string&) { return kDigits; });
      auto compiled = sets_.add(patterns_.size(), pattern);
      if (compiled == nullptr || !compiled->ok()) throw too_many_orders();
      patterns_.push_back({std::move(compiled), number, of_item});
    }
  }
  for (std::size_t group = 0; group < flatten.param_shapes.size(); ++group) {
    for (const std::string& name : flatten.param_shapes[group]) {
      const auto number = static_cast<std::int64_t>(plain_.entries().size());
      plain_.try_emplace(name, std::vector{number});
      group_of_name_.try_emplace(name, std::to_string(group));
    }
  }
  if (!sets_.compile()) throw too_many_orders();
}

std::optional<FlatKeys::Place> FlatKeys::find(std::string_view key) const {
  const bool is_long = key.size() > MatchTime::kLongestName && !flatten_.takes_param_shapes;
  return is_long ? std::nullopt : time_(key, [&] { return place_of(key); });
}

std::optional<FlatKeys::Place> FlatKeys::place_of(std::string_view key) const {
  std::optional<std::string> group = group_of(key);
  if (!group) return std::nullopt;
  std::optional<std::vector<std::int64_t>> order = order_of(key);
  if (!order) return std::nullopt;
  return Place{std::move(*group), std::move(*order)};
}

std::optional<std::string> FlatKeys::group_of(std::string_view key) const {
  if (flatten_.takes_param_shapes) {
    const std::string* const group = group_of_name_.find(key);
    return group == nullptr ? std::nullopt : std::optional(*group);
  }
  if (groups_.empty()) return "0";
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    std::string captured;
    if (groups_[i]->NumberOfCapturingGroups() == 0) {
      if (RE2::FullMatch(key, *groups_[i])) return std::to_string(i);
    } else if (RE2::FullMatch(key, *groups_[i], &captured)) {
      return captured;
    }
  }
  return std::nullopt;
}

std::optional<std::vector<std::int64_t>> FlatKeys::order_of(std::string_view key) const {
  if (flatten_.order.empty() && !flatten_.takes_param_shapes) return std::vector<std::int64_t>();
  std::vector<std::size_t> numbers;
  sets_.append_matching(key, numbers);
  std::optional<std::vector<std::int64_t>> order;
  const auto set = [&](std::vector<std::int64_t> found) {
    if (order) throw wrong(fmt::format("the map's flatten.order has '{}' in two items", key)).of_tensor(key);
    order = std::move(found);
  };
  if (const auto* const found = plain_.find(key)) set(*found);
  for (const std::size_t number : numbers) {
    const Pattern& pattern = patterns_[number];
    const auto groups = static_cast<std::size_t>(pattern.compiled->NumberOfCapturingGroups());
    std::vector<re2::StringPiece> texts(groups + 1);
    if (!pattern.compiled->Match(key, 0, key.size(), RE2::ANCHOR_BOTH, texts.data(), static_cast<int>(texts.size()))) {
      continue;
    }
    // Sort key: the item, then the numbers in the name, then the position of the name within the item. So an item with
    // several names is repeated as a whole for each number.
    std::vector<std::int64_t> place{pattern.item};
    for (std::size_t i = 1; i < texts.size(); ++i) {
      place.push_back(parse_number({texts[i].data(), texts[i].size()}).value());
    }
    place.push_back(pattern.name);
    set(std::move(place));
  }
  return order;
}

/// Sorts the local tensors into groups, lays each group out in buffers, and splits replicas at the same elements.
FlatBuffers::FlatBuffers(const ModelMap& map, std::vector<FlatLocal> locals) : locals_(std::move(locals)) {
  const MapFlatten& flatten = *map.document().flatten;
  const FlatKeys keys(flatten);
  places_.resize(locals_.size());
  for (const std::string& name : flatten.bucket_ends) bucket_ends_.insert(name);
  struct Sorted {
    std::size_t family;
    std::int64_t rank;
    FlatKeys::Place place;
    std::string_view key;
    std::uint32_t local;
  };
  std::vector<Sorted> sorted;
  HashSet<std::string> there;
  for (std::uint32_t i = 0; i < locals_.size(); ++i) {
    const FlatLocal& local = locals_[i];
    std::optional<FlatKeys::Place> place = keys.find(local.key);
    if (!place) {
      throw wrong(
          fmt::format(
              "cannot put '{}' into a flat buffer: neither flatten.groups nor flatten.order of the map contains it",
              local.key))
          .of_tensor(local.key);
    }
    there.insert(local.key);
    sorted.push_back({local.family, local.rank, std::move(*place), local.key, i});
  }
  check_listed(flatten, there);
  // Buffers are laid out group by group. A group has the tensors of one family, rank and group, in the document's
  // order.
  const auto group_of = [](const Sorted& each) { return std::tie(each.family, each.rank, each.place.group); };
  std::ranges::sort(sorted, [&](const Sorted& a, const Sorted& b) {
    return group_of(a) != group_of(b) ? group_of(a) < group_of(b)
                                      : std::tie(a.place.order, a.key) < std::tie(b.place.order, b.key);
  });
  for (std::size_t begin = 0, end = 0; begin < sorted.size(); begin = end) {
    std::vector<std::uint32_t> group;
    for (; end < sorted.size() && group_of(sorted[end]) == group_of(sorted[begin]); ++end) {
      group.push_back(sorted[end].local);
    }
    lay_group(map, group, sorted[begin].place.group);
  }
  cut_replicas();
}

/// Lays out the tensors of one group. All elements of a buffer have one dtype.
void FlatBuffers::lay_group(const ModelMap& map, std::span<const std::uint32_t> locals, const std::string& group) {
  const MapFlatten& flatten = *map.document().flatten;
  const FlatLocal& first = locals_[locals.front()];
  std::vector<std::int64_t> numels;
  std::vector<bool> ends;
  for (const std::uint32_t i : locals) {
    const FlatLocal& local = locals_[i];
    if (local.dtype != first.dtype) {
      throw wrong(
          fmt::format("cannot put '{}' into one flat buffer with '{}': its dtype is different", local.key, first.key))
          .of_tensor(local.key)
          .expected(dtype_name(first.dtype))
          .found(dtype_name(local.dtype));
    }
    numels.push_back(checked_numel(local.shape));
    if (!flatten.bucket_ends.empty()) ends.push_back(bucket_ends_.contains(local.key));
  }
  const FlatLayout layout = lay_flat(numels, ends, rule_of(map));
  const BucketPlaces buckets = add_buffers(map, first, group, layout);
  const auto place_of = [&](const FlatPiece& piece) {
    const auto bucket = static_cast<std::size_t>(piece.bucket);
    const auto buffer = static_cast<std::uint32_t>(piece.part * buckets.stride) + buckets.buffers[bucket];
    return FlatPlace{buffer, buckets.begins[bucket] + piece.first, piece.begin, piece.count};
  };
  for (std::size_t i = 0; i < locals.size(); ++i) {
    count_pieces(layout.tensors[i].size());
    for (const FlatPiece& piece : layout.tensors[i]) places_[locals[i]].push_back(place_of(piece));
  }
  for (const FlatPiece& piece : layout.padding) add_padding(place_of(piece));
}

/// Adds the buffers of all parts: one per part for all buckets, or one per part and bucket.
FlatBuffers::BucketPlaces FlatBuffers::add_buffers(const ModelMap& map, const FlatLocal& first,
                                                   const std::string& group, const FlatLayout& layout) {
  const MapFlatten& flatten = *map.document().flatten;
  const FlatFamily& family = flatten.families[first.family];
  const bool is_apart = has_buckets(family);
  const std::int64_t parts = map.mesh()[flatten.axis];
  BucketPlaces buckets{is_apart ? std::ssize(layout.slices) : 1, {}, {}};
  if (buckets.stride * parts > static_cast<std::int64_t>(kMaxFlatPieces - buffers_.size())) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("the map's flatten produces more than {} buffers", kMaxFlatPieces));
  }
  std::vector<std::int64_t> sizes;  // The sizes of one part's buffers.
  for (const std::int64_t slice : layout.slices) {
    if (is_apart || sizes.empty()) sizes.push_back(0);
    buckets.buffers.push_back(static_cast<std::uint32_t>(buffers_.size() + sizes.size() - 1));
    buckets.begins.push_back(sizes.back());
    sizes.back() = checked_add(sizes.back(), slice);
  }
  std::int64_t rank = first.rank, stride = 1;  // `stride`: between neighbours on the axis.
  for (std::size_t axis = flatten.axis + 1; axis < map.mesh().size(); ++axis) stride *= map.mesh()[axis];
  for (std::int64_t part = 0; part < parts; ++part, rank += stride) {
    // Only the last part can lack padding at its end.
    const std::int64_t tail = part == parts - 1 ? layout.tail : 0;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      buffers_.push_back({buffer_name(family, group, std::to_string(i)), rank, sizes[i] - tail, sizes[i], first.dtype});
    }
  }
  return buckets;
}

/// Splits replicas at the same elements. Buffers of two ranks may split one tensor at different elements. Each of its
/// replicas is split at all those elements, so that the boxes of replicas are equal.
void FlatBuffers::cut_replicas() {
  std::vector<std::uint32_t> order(locals_.size());
  for (std::uint32_t i = 0; i < order.size(); ++i) order[i] = i;
  const auto compare = [&](std::uint32_t a, std::uint32_t b) {
    const FlatLocal &x = locals_[a], &y = locals_[b];
    if (x.origin != y.origin) return x.origin < y.origin;
    return std::ranges::lexicographical_compare(x.shape, y.shape);
  };
  std::ranges::sort(order, compare);
  // Locals with one origin and shape are replicas. First collects the begins of all their pieces, then splits every
  // piece at them.
  for (std::size_t begin = 0, end = 0; begin < order.size(); begin = end) {
    std::vector<std::int64_t> cuts;
    for (; end < order.size() && !compare(order[begin], order[end]); ++end) {
      for (const FlatPlace& place : places_[order[end]]) cuts.push_back(place.begin);
    }
    if (end - begin < 2) continue;
    sort_unique(cuts);
    for (std::size_t i = begin; i < end; ++i) {
      std::vector<FlatPlace> cut;
      for (FlatPlace place : places_[order[i]]) {
        for (auto next = std::ranges::upper_bound(cuts, place.begin);
             next != cuts.end() && *next < place.begin + place.count; ++next) {
          count_pieces(1);
          const std::int64_t count = *next - place.begin;
          cut.push_back({place.buffer, place.first, place.begin, count});
          place = {place.buffer, place.first + count, *next, place.count - count};
        }
        cut.push_back(place);
      }
      places_[order[i]] = std::move(cut);
    }
  }
}

/// Adds padding, and joins it with adjacent padding before it. \pre places of a buffer are added in order
void FlatBuffers::add_padding(const FlatPlace& place) {
  last_padding_.resize(buffers_.size(), kNoIndex);
  std::uint32_t& last = last_padding_[place.buffer];
  if (last != kNoIndex && padding_[last].first + padding_[last].count == place.first) {
    padding_[last].count += place.count;
    return;
  }
  count_pieces(1);
  last = static_cast<std::uint32_t>(padding_.size());
  padding_.push_back(place);
}

void FlatBuffers::count_pieces(std::size_t more) {
  pieces_ += more;
  if (pieces_ <= kMaxFlatPieces) return;
  throw Error(ErrorCode::kUnsupported, fmt::format("the map's flatten produces more than {} pieces", kMaxFlatPieces));
}

void FlatBuffers::append_chunks(const Catalog& stored, std::span<const std::uint32_t> buffer_of, std::uint32_t local,
                                std::int64_t begin, std::int64_t end, Arena& arena, std::vector<Chunk>& out) const {
  const std::vector<FlatPlace>& places = places_[local];
  const auto end_of = [](const FlatPlace& each) { return each.begin + each.count; };
  const auto first = std::ranges::upper_bound(places, begin, {}, end_of);
  const auto last = std::ranges::lower_bound(first, places.end(), end, {}, &FlatPlace::begin);
  for (const FlatPlace& place : std::span(first, last)) {
    append_place(stored, stored.tensors[buffer_of[place.buffer]], locals_[local].shape, place, arena, out);
  }
}

}  // namespace shard
