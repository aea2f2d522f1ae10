/// \file
/// Reads values in the pickles of a DeepSpeed save. Inside formats/deepspeed only.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/deepspeed/states.h"
#include "formats/parts/pickle/attributes.h"
#include "formats/torch/saved_files.h"
#include "libshard/core/error.h"

namespace shard::deepspeed {

/// The value under `key`; null if it is None or missing.
Value* find_value(const Value& mapping, std::string_view key);
/// \throws Error kCorruption  the value is None or missing.
Value& need_value(const Value& mapping, std::string_view key);

/// The groups of param_shapes: a list of them, or before DeepSpeed 0.5.4 a single one. Nothing if it is missing.
std::optional<std::vector<ParamGroup>> read_groups(Arena& arena, const Value& root);

/// Opens the file and calls `read` with its root. Adds the file's name to errors.
template <class Read>
void open_file(Catalog& catalog, torch_save::SavedFiles& files, const std::string& name, const Read& read) {
  Value* const root = files.add(name);
  try {
    if (!is_mapping(*root)) throw pickle::malformed("states", "they are not a dict").found(type_name(*root));
    read(*root);
  } catch (Error& error) {
    throw error.in_file(catalog.files.back().path);
  }
}

}  // namespace shard::deepspeed
