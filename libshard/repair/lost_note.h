/// \file
/// The note that a repaired checkpoint carries in its metadata of what its source had lost.
///
///     "shardctl.lost": "{\"schema\":\"shardctl.lost/1\",\"count\":1,\"lost\":[{\"what\":\"tensor\",\"name\":\"w\",
///       \"dtype\":\"float32\",\"shape\":[4,3],\"boxes\":[],\"file\":\"a.pt\",\"why\":\"...\"}]}"
///
/// Readers put it into Catalog::metadata, wherever their format keeps it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "libshard/catalog/catalog.h"
#include "libshard/repair/salvage.h"

namespace shard {

/// At most so many losses are listed; the count says how many there were.
inline constexpr std::size_t kMostNoted = 10'000;

struct LostNote {
  std::vector<Loss> losses;
  std::int64_t count = 0;  ///< All of them, those that are not listed too.
};

std::string dump_lost_note(std::span<const Loss> losses);

/// What a repair noted in this checkpoint's metadata; nothing where there is no note.
/// \throws Error kCorruption (kind bad_header)  the note is not such a document, or is larger than 16 MiB.
std::optional<LostNote> read_lost_note(const Catalog& catalog);

}  // namespace shard
