/// \file
/// Reads `split` and `widths`, which maps and layout documents have in common. Inside libshard/catalog and libshard/map
/// only.
#pragma once

#include <vector>

#include "libshard/catalog/json_place.h"
#include "libshard/catalog/split.h"

namespace shard {

struct SplitWords {
  CutRule split;
  std::vector<Expression> widths{};  ///< kWidths only.
};

/// \throws Error kInvalidArgument  none of the four words.
CutRule read_split(const JsonPlace& place);

/// The keys `split` and `widths` of a cut; `otherwise` counts without `split`.
/// \throws Error kInvalidArgument  one of widths and split "widths" without the other.
SplitWords read_split_words(const JsonPlace& cut, CutRule otherwise);

}  // namespace shard
