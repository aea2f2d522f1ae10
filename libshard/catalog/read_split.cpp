#include "libshard/catalog/read_split.h"

namespace shard {

CutRule read_split(const JsonPlace& place) {
  return static_cast<CutRule>(place.word({"even", "chunk", "first_extra", "widths"}));
}

SplitWords read_split_words(const JsonPlace& cut, CutRule otherwise) {
  SplitWords words{otherwise};
  if (const auto split = cut.find("split")) words.split = read_split(*split);
  const auto widths = cut.find("widths");
  if (widths) words.widths = widths->expressions();
  if (widths && words.widths.empty()) throw widths->not_a("a list of widths, one for each part");
  if ((words.split == CutRule::kWidths) != widths.has_value()) {
    throw JsonPlace::wrong(cut.where() + ": widths and split \"widths\" stand together");
  }
  return words;
}

}  // namespace shard
