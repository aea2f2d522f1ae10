/// \file
/// Finds Hugging Face's index in a folder, by the same rules for safetensors and torch checkpoints.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "libshard/io/source_store.h"

namespace shard::hf_index {

/// True for a visible name that ends in `suffix` (".safetensors.index.json", ".bin.index.json"), or for that of a
/// variant (model.safetensors.index.fp16.json).
bool is_index_name(std::string_view name, std::string_view suffix);

/// The index among a folder's `names`, or empty. If there are several, the one called `usual`, or the only one without
/// a variant (model.fp16.safetensors.index.json and model.safetensors.index.fp16.json have one).
/// \throws Error kCorruption  there are several, and neither rule decides; the error suggests each.
std::string choose_index(const std::string& folder, const std::vector<std::string>& names, std::string_view suffix,
                         std::string_view usual);

/// True if the file's start is that of an index whose files end in `data_suffix` (".safetensors", ".bin").
bool is_index_file(const RandomReader& file, std::string_view data_suffix);

}  // namespace shard::hf_index
