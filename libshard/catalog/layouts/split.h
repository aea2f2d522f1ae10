/// \file Rules that divide a dimension into parts: the `split` of maps and layout documents. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace shard {

enum class CutRule : std::uint8_t {
  kEven,        ///< Equal parts.
  kChunk,       ///< Like torch.chunk: ceil(n / parts) each. The last one is shorter.
  kFirstExtra,  ///< The first n % parts parts have one more.
  kWidths,      ///< The widths are listed.
};
/// "even", "chunk", "first_extra" or "widths".
std::string_view to_string(CutRule rule);

/// A range of positions.
struct DimRange {
  std::int64_t begin = 0, size = 0;
};

/// A split and its numbers: part `index` of `parts`.
struct DimCut {
  CutRule split = CutRule::kEven;
  std::int64_t parts = 1, index = 0;
  std::vector<std::int64_t> ends{};  ///< kWidths only, see ends_of.
};

/// The end of each part in a list of widths. `where` names the list in messages.
/// \throws Error kInvalidArgument  a negative width, or a sum past 63 bits.
std::vector<std::int64_t> ends_of(std::span<const std::int64_t> widths, const std::string& where);

/// The part of [0, n). Cost: constant.
/// \throws Error kInvalidArgument  kEven if `parts` does not divide n; widths that are not one per part, of sum n.
DimRange cut_range(std::int64_t n, const DimCut& cut, const std::string& where);

/// Piece `index` of [0, n) in consecutive pieces of `size`; empty, at n, past the end. CutRule::kChunk's parts are
/// pieces of ceil(n / parts). \pre no number is negative
DimRange piece_of(std::int64_t n, std::int64_t size, std::int64_t index);

}  // namespace shard
