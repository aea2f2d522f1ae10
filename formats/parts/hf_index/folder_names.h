/// \file
/// The names in a checkpoint's folder: which part is missing, and which files are not read.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace shard::hf_index {

/// The first part (model-00002-of-00003.safetensors) that is not among `names` though another part's name counts it, or
/// empty. Parts count from 1, or from 0 where a part of that number is there. Names of another form, or without
/// `suffix` (".safetensors"), say nothing.
/// Cost: n log n in names, whatever number they give.
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

/// "a, b, c, d, e and 3 more".
std::string first_few(const std::vector<std::string>& names);

/// The warning about files of the folder that are not read.
std::string others_warning(const std::vector<std::string>& names);
/// True for what others_warning makes.
bool is_others_warning(std::string_view warning);

}  // namespace shard::hf_index
