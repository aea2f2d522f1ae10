/// \file
/// Values of the pickles of a DeepSpeed save. Inside formats/deepspeed only.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/deepspeed/states.h"
#include "formats/parts/pickle/attributes.h"
#include "formats/torch/saved_files.h"
#include "formats/torch/tensor_finder.h"
#include "libshard/core/error.h"

namespace shard::deepspeed {

/// The value under `key`; null where it is None or not there.
Value* find_value(const Value& mapping, std::string_view key);
/// \throws Error kCorruption  there is none.
Value& need_value(const Value& mapping, std::string_view key);

using torch_save::TensorFinder;

/// The groups of param_shapes: a list of them, or before DeepSpeed 0.5.4 one. Nothing where there are none.
std::optional<std::vector<ParamGroup>> read_groups(Arena& arena, const Value& root);

/// Opens the file and calls `read` with its root, naming the file in what is thrown.
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
