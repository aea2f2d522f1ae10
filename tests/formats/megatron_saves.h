/// \file
/// Golden saves of Megatron for its tests: their files as bytes, for changes, and their expected content.
#pragma once

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <string_view>

#include "libshard/catalog/catalog.h"
#include "libshard/io/local_disk.h"
#include "tests/support/content.h"

namespace shard::testing {

/// The files below a folder by their paths from there.
inline std::map<std::string, std::string> files_below(const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    std::ifstream file(entry.path(), std::ios::binary);
    files[std::filesystem::relative(entry.path(), folder)] = {std::istreambuf_iterator<char>(file), {}};
  }
  return files;
}

/// The expected content, from the safetensors file beside a golden save.
inline Content truth_beside(const std::string& save) {
  return read_content(*open_checkpoint(posix_disk(), save + ".safetensors"));
}

/// Null if there is none of that name.
inline const Object* find_object(const Catalog& catalog, std::string_view name) {
  const auto found = std::ranges::find(catalog.objects, name, &Object::name);
  return found == catalog.objects.end() ? nullptr : &*found;
}

}  // namespace shard::testing
