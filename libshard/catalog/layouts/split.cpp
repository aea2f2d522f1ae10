#include "libshard/catalog/layouts/split.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "libshard/core/checked.h"
#include "libshard/core/error.h"

namespace shard {

namespace {

Error misfit(const std::string& message) { return Error(ErrorCode::kInvalidArgument, message); }

DimRange even_part(std::int64_t n, const DimCut& cut, const std::string& where) {
  if (n % cut.parts != 0) {
    throw misfit(fmt::format("{} cannot divide {} evenly into {}", where, n, cut.parts)).expected(cut.parts).found(n);
  }
  const std::int64_t size = n / cut.parts;
  return {cut.index * size, size};
}

/// torch.chunk: all parts have ceil(n / parts) elements but the last ones, which have fewer or none. A part past the
/// end is empty at n.
DimRange chunk_part(std::int64_t n, const DimCut& cut) { return piece_of(n, ceil_div(n, cut.parts), cut.index); }

/// numpy.array_split: the first n % parts parts have one element more. Part i begins after i parts, of which min(i,
/// extra) have one more.
DimRange first_extra_part(std::int64_t n, const DimCut& cut) {
  const std::int64_t size = n / cut.parts, extra = n % cut.parts;
  return {cut.index * size + std::min(cut.index, extra), size + (cut.index < extra ? 1 : 0)};
}

/// Parts of given widths, by their ends: part i is [ends[i - 1], ends[i]).
DimRange listed_part(std::int64_t n, const DimCut& cut, const std::string& where) {
  const std::int64_t sum = cut.ends.empty() ? 0 : cut.ends.back();
  if (std::ssize(cut.ends) != cut.parts || sum != n) {
    throw misfit(fmt::format("{}: {} widths do not add up to {} in {} parts", where, cut.ends.size(), n, cut.parts))
        .expected(n)
        .found(sum);
  }
  const auto index = static_cast<std::size_t>(cut.index);
  const std::int64_t begin = index == 0 ? 0 : cut.ends[index - 1];
  return {begin, cut.ends[index] - begin};
}

}  // namespace

std::string_view to_string(CutRule rule) {
  constexpr std::array<std::string_view, 4> kWords{"even", "chunk", "first_extra", "widths"};
  return kWords[static_cast<std::size_t>(rule)];
}

/// Sums the widths. A sum that overflows is refused like a negative width.
std::vector<std::int64_t> ends_of(std::span<const std::int64_t> widths, const std::string& where) {
  std::vector<std::int64_t> ends;
  std::int64_t end = 0;
  for (const std::int64_t width : widths) {
    if (width < 0 || __builtin_add_overflow(end, width, &end)) {
      throw misfit(fmt::format("{}: {} is not a width", where, width))
          .expected("0 or more, with a sum of at most 63 bits")
          .found(width);
    }
    ends.push_back(end);
  }
  return ends;
}

DimRange piece_of(std::int64_t n, std::int64_t size, std::int64_t index) {
  const std::int64_t begin = size == 0 || index > n / size ? n : index * size;
  return {begin, std::min(size, n - begin)};
}

DimRange cut_range(std::int64_t n, const DimCut& cut, const std::string& where) {
  switch (cut.split) {
    case CutRule::kEven:
      return even_part(n, cut, where);
    case CutRule::kChunk:
      return chunk_part(n, cut);
    case CutRule::kFirstExtra:
      return first_extra_part(n, cut);
    case CutRule::kWidths:
      break;
  }
  return listed_part(n, cut, where);
}

}  // namespace shard
