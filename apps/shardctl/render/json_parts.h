/// \file
/// Members that several JSON documents share.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "libshard/catalog/catalog.h"
#include "libshard/core/json_writer.h"

namespace shard::app {

/// `files`: path and bytes of each file, one line for each.
void write_files(JsonWriter& json, std::span<const File> files);

/// A list of texts under a key.
void write_texts(JsonWriter& json, std::string_view key, std::span<const std::string> texts);

/// `libraries`: versions by name.
void write_libraries(JsonWriter& json);

}  // namespace shard::app
