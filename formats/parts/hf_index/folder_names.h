/// \file
/// The names in a checkpoint's folder: which part is missing, and which files are not read.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace shard::hf_index {

/// Parts of one checkpoint by their names, which count themselves: model-00001-of-00003.safetensors. They count from 1,
/// or from 0 if there is a part 0. A variant may be part of the base (model.fp16-00001-of-00003.safetensors) or stand
/// behind the count (model-00001-of-00003.fp16.safetensors).
struct CountedSet {
  std::string base;                ///< "model-".
  std::string count;               ///< "00003".
  std::string end;                 ///< ".safetensors", ".fp16.safetensors".
  std::vector<std::string> names;  ///< The parts, sorted.
  std::string missing;             ///< The first part that is not among them, or empty.

  std::string pattern() const { return base + "*-of-" + count + end; }
};
/// The sets among `names`. Names of other forms, or without `suffix` (".safetensors"), are not counted.
/// Cost: n log n in names, whatever number they give.
std::vector<CountedSet> counted_sets(const std::vector<std::string>& names, std::string_view suffix);

/// The first part that is missing from a set among `names`, or empty.
std::string missing_part(const std::vector<std::string>& names, std::string_view suffix);

/// The names among `names` that are parts by the count of one in `listed` (model-00002-of-00003.safetensors beside
/// model-00001-of-00003.safetensors), and not in it themselves; all of them where `listed` is empty.
/// \pre `listed` is sorted. Cost: n log n in names.
std::vector<std::string> unlisted_parts(const std::vector<std::string>& names, const std::vector<std::string>& listed,
                                        std::string_view suffix);

/// A checkpoint without its index: one file, or all the parts that one of them counts.
struct WholeSet {
  std::vector<std::string> names;  ///< Sorted; empty: there is none.
  std::string pattern{};           ///< What a shell matches them by: "model-*-of-00002.safetensors".
};

/// The one whole set among `names` of which `listed` has no file: `single` ("model.safetensors"), or parts of one
/// count. Nothing if there are several. \pre `listed` is sorted. Cost: n log n in names, whatever number they give.
WholeSet whole_set_beside(const std::vector<std::string>& names, const std::vector<std::string>& listed,
                          std::string_view single, std::string_view suffix);

/// The warning about files of the folder that are not read.
std::string others_warning(const std::vector<std::string>& names);
/// True for what others_warning makes.
bool is_others_warning(std::string_view warning);

}  // namespace shard::hf_index
