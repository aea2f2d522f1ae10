/// \file Reads `split` and `widths`, which maps and layout documents share. Inside libshard/catalog and libshard/map
///   only.
#pragma once

#include <vector>

#include "libshard/catalog/json_place.h"
#include "libshard/catalog/split.h"

namespace shard {

struct SplitWords {
  CutRule split;
  std::vector<Expression> widths{};  ///< kWidths only.
};

/// \throws Error kInvalidArgument  the text is none of the four words.
CutRule read_split(const JsonPlace& place);

/// Reads the keys `split` and `widths` of a cut. `otherwise` is the rule without `split`.
/// \throws Error kInvalidArgument  either widths or split "widths" is missing.
SplitWords read_split_words(const JsonPlace& cut, CutRule otherwise);

}  // namespace shard
