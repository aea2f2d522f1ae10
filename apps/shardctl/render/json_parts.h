/// \file
/// Members that several JSON documents share.
#pragma once

#include <optional>
#include <span>
#include <string_view>

#include "libshard/catalog/catalog.h"
#include "libshard/checkpoint/rank_groups.h"
#include "libshard/core/json_writer.h"

namespace shard::app {

/// Writes `files`: path and bytes of each file, and its rank and group if known, one line per file. `groups` is by
/// file, and may be shorter.
void write_files(JsonWriter& json, std::span<const File> files, std::span<const std::optional<RankGroup>> groups = {});

/// Writes a range of texts as a list under a key.
template <class Texts>
void write_texts(JsonWriter& json, std::string_view key, const Texts& texts) {
  json.key(key), json.list(texts, [&](const std::string_view text) { json.string(text); });
}

/// Writes `libraries`: versions by name.
void write_libraries(JsonWriter& json);

}  // namespace shard::app
