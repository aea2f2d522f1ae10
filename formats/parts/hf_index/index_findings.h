/// \file
/// What is wrong with an index and its files, yet keeps nobody from reading them.
#pragma once

#include <string>
#include <string_view>

#include "libshard/core/error.h"

namespace shard::hf_index {

/// A file in the folder that the index does not name.
Error extra_file(const std::string& name);
/// A tensor that a file of the index holds and the index does not list.
Error unlisted_tensor(std::string_view name, const std::string& index);
/// A tensor in a file other than the one that the index says.
Error misplaced_tensor(std::string_view name, const std::string& index);

}  // namespace shard::hf_index
