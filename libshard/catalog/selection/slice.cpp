#include "libshard/catalog/selection/slice.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <span>

#include "libshard/catalog/catalog_builder.h"
#include "libshard/core/error.h"
#include "libshard/core/parse_number.h"
#include "libshard/core/split.h"

namespace shard {

namespace {

Error malformed(std::string_view text, const std::string& why) {
  return Error(ErrorCode::kInvalidArgument, fmt::format("cannot take slice '[{}]': {}", text, why))
      .hint("give a slice such as NAME[0:8,:], NAME[-1] or NAME[...,0]");
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

std::vector<std::string_view> trimmed_parts(std::string_view text, char separator) {
  std::vector<std::string_view> parts = split(text, separator);
  std::ranges::transform(parts, parts.begin(), trimmed);
  return parts;
}

/// Parses the number in `part`, or nothing if it is empty.
std::optional<std::int64_t> number(std::string_view part, std::string_view slice) {
  if (part.empty()) return std::nullopt;
  const std::optional<std::int64_t> value = parse_number(part);
  if (!value) throw malformed(slice, fmt::format("'{}' is not a number", part));
  return value;
}

/// Resolves a bound of begin:end in a dimension of `size`.
std::int64_t clamped(std::int64_t bound, std::int64_t size) {
  return std::clamp<std::int64_t>(bound < 0 ? bound + size : bound, 0, size);
}

/// A range keeps its dimension. Its bounds are clamped, as in Python.
void apply_range(std::span<const std::string_view> bounds, std::string_view slice, int d, Slice& result) {
  const std::int64_t size = result.box.size[static_cast<std::size_t>(d)];
  const std::int64_t begin = clamped(number(bounds[0], slice).value_or(0), size);
  const std::int64_t end = clamped(number(bounds[1], slice).value_or(size), size);
  result.box.offset[static_cast<std::size_t>(d)] = begin;
  result.box.size[static_cast<std::size_t>(d)] = std::max<std::int64_t>(0, end - begin);
  result.shape.push_back(result.box.size[static_cast<std::size_t>(d)]);
}

/// An index removes its dimension. It must exist, as in Python.
void apply_index(std::int64_t index, std::string_view slice, int d, Slice& result) {
  const std::int64_t size = result.box.size[static_cast<std::size_t>(d)];
  if (index < -size || index >= size) {
    throw malformed(slice, fmt::format("index {} is out of range for dimension {} of size {}", index, d, size));
  }
  result.box.offset[static_cast<std::size_t>(d)] = index < 0 ? index + size : index;
  result.box.size[static_cast<std::size_t>(d)] = 1;
}

/// Applies one part between commas to dimension `d`.
void apply(std::string_view part, std::string_view slice, int d, Slice& result) {
  const std::vector<std::string_view> bounds = trimmed_parts(part, ':');
  if (bounds.size() > 2) throw malformed(slice, fmt::format("'{}' has a step; steps are not supported", part));
  if (bounds.size() == 2) return apply_range(bounds, slice, d, result);
  const auto index = number(part, slice);
  if (!index) throw malformed(slice, "an index is missing");
  apply_index(*index, slice, d, result);
}

}  // namespace

Slice whole(Dims shape) {
  const std::vector<std::int64_t> begin(static_cast<std::size_t>(shape.size()), 0);
  return {Box(begin, shape), {shape.begin(), shape.end()}};
}

Slice parse_slice(std::string_view text, Dims shape, std::string_view tensor) {
  const std::vector<std::string_view> parts = trimmed_parts(text, ',');
  const auto ellipses = std::ranges::count(parts, std::string_view("..."));
  if (ellipses > 1) throw malformed(text, "'...' may appear only once");
  const auto named = static_cast<int>(parts.size()) - static_cast<int>(ellipses);
  if (named > shape.size()) {
    throw malformed(text,
                    fmt::format("it has {} indices, but '{}' has only {} dimensions", named, tensor, shape.size()));
  }
  Slice result = whole(shape);
  result.shape.clear();
  int d = 0;
  const auto skip_whole = [&](int until) {
    for (; d < until; ++d) result.shape.push_back(shape[d]);
  };
  for (const std::string_view part : parts) {
    if (part == "...") {
      skip_whole(d + shape.size() - named);
    } else {
      apply(part, text, d++, result);
    }
  }
  skip_whole(shape.size());
  return result;
}

/// The last bracket begins the slice, because names may contain brackets.
SlicedName split_slice(std::string_view text) {
  const std::size_t bracket = text.rfind('[');
  if (bracket == std::string_view::npos || !text.ends_with(']')) return {text, {}, false};
  return {text.substr(0, bracket), text.substr(bracket + 1, text.size() - bracket - 2), true};
}

/// Crops each chunk to the box. Strides stay; only the first element and the offsets move.
Catalog sliced(const Catalog& catalog, std::uint32_t tensor, const Box& box) {
  const Tensor& from = catalog.tensors[tensor];
  Catalog view;
  view.files = catalog.files;
  view.storages = catalog.storages;
  view.borrowed = catalog.borrowed;
  view.borrowed.push_back(catalog.arena);
  Tensor to = from;
  to.shape = view.arena->dims(box.sizes());
  to.alias_of = kNoIndex;
  to.sharding = kNoIndex;
  CatalogBuilder builder(view);
  builder.begin(to);
  for (const Chunk& chunk : catalog.chunks_of(from)) {
    Box part = intersect(box, Box(chunk.offsets, chunk.sizes));
    if (part.empty()) continue;
    Chunk piece = chunk;
    for (std::size_t d = 0; d < box.sizes().size(); ++d) {
      piece.first += (part.offset[d] - chunk.offsets[static_cast<int>(d)]) * chunk.strides[static_cast<int>(d)];
      part.offset[d] -= box.offset[d];
    }
    piece.offsets = view.arena->dims(part.offsets());
    piece.sizes = view.arena->dims(part.sizes());
    piece.stored = builder.add_stored(catalog.stored_of(chunk));
    builder.add_chunk(piece);
  }
  // Cropping the chunks may change their order. Replicas stay in the order of their ranks.
  std::ranges::stable_sort(view.chunks, [](const Chunk& a, const Chunk& b) {
    return std::ranges::lexicographical_compare(a.offsets, b.offsets);
  });
  return view;
}

}  // namespace shard
