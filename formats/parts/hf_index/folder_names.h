/// \file
/// The names in a checkpoint's folder: finds missing parts, and files that are not read.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace shard::hf_index {

/// The parts of one checkpoint whose names count them: model-00001-of-00003.safetensors. Numbers start at 1, or at 0 if
/// there is a part 0. A variant may be part of the base (model.fp16-00001-of-00003.safetensors) or follow the count
/// (model-00001-of-00003.fp16.safetensors).
struct CountedSet {
  std::string base;                ///< "model-".
  std::string count;               ///< "00003".
  std::string end;                 ///< ".safetensors", ".fp16.safetensors".
  std::vector<std::string> names;  ///< The parts, sorted.
  std::string missing;             ///< The first missing part, or empty.

  std::string pattern() const { return base + "*-of-" + count + end; }
};
/// The sets among `names`. Names of other forms, or without `suffix` (".safetensors"), are ignored.
/// Cost: n log n in names, regardless of their counts.
std::vector<CountedSet> counted_sets(const std::vector<std::string>& names, std::string_view suffix);

/// The first part that is missing from a set among `names`, or empty.
std::string missing_part(const std::vector<std::string>& names, std::string_view suffix);

/// The parts among `names` that belong to the same set as a name in `listed`, but are not in it:
/// model-00002-of-00003.safetensors beside a listed model-00001-of-00003.safetensors. All of them if `listed` is empty.
/// \pre `listed` is sorted. Cost: n log n in names.
std::vector<std::string> unlisted_parts(const std::vector<std::string>& names, const std::vector<std::string>& listed,
                                        std::string_view suffix);

/// A checkpoint without its index: one file, or all parts of one set.
struct WholeSet {
  std::vector<std::string> names;  ///< Sorted; empty if there is no such set.
  std::string pattern{};           ///< The shell pattern that matches them: "model-*-of-00002.safetensors".
};

/// The only complete set among `names` that has no file in `listed`: `single` ("model.safetensors"), or the parts of
/// one count. Empty if there are several. \pre `listed` is sorted. Cost: n log n in names, regardless of their counts.
WholeSet whole_set_beside(const std::vector<std::string>& names, const std::vector<std::string>& listed,
                          std::string_view single, std::string_view suffix);

/// The warning about files of the folder that are not in the catalog. A config among them may have been read.
std::string others_warning(const std::vector<std::string>& names);
/// True for a warning of others_warning.
bool is_others_warning(std::string_view warning);

}  // namespace shard::hf_index
