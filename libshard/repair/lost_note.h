/// \file The note in a repaired checkpoint's metadata that lists the losses of its source.
///
///         "shardctl.lost": "{\"schema\":\"shardctl.lost/1\",\"count\":1,\"lost\":[{\"what\":\"tensor\",\"name\":\"w\",
///             \"dtype\":\"float32\",\"shape\":[4,3],\"boxes\":[],\"file\":\"a.pt\",\"why\":\"...\"}]}"
///
/// Readers of all formats store it in Catalog::metadata, regardless of where the format keeps it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "libshard/catalog/catalog.h"
#include "libshard/core/json_writer.h"
#include "libshard/repair/salvage.h"

namespace shard {

/// The most losses that are listed. `count` includes all.
inline constexpr std::size_t kMostNoted = 10'000;

struct LostNote {
  std::vector<Loss> losses;
  std::int64_t count = 0;  ///< The number of all losses, including those that are not listed.
};

/// "tensor", "object" or "file".
std::string_view name_of(Loss::What what);
/// Writes the members of a loss, with the keys above.
void write_loss(JsonWriter& json, const Loss& loss);

/// \param unlisted  the number of further losses, which earlier notes counted without listing them
std::string dump_lost_note(std::span<const Loss> losses, std::int64_t unlisted = 0);

/// Reads the note of a repair in this checkpoint's metadata, or nothing if there is none.
/// \throws Error kCorruption (kind bad_header)  the note is not such a document, or is larger than 16 MiB.
std::optional<LostNote> read_lost_note(const Catalog& catalog);

}  // namespace shard
