/// \file
/// Texts of a source: the front of a file, a whole file, and files of one word or name.
#pragma once

#include <cstdint>
#include <string>

#include "libshard/io/source_store.h"

namespace shard {

/// The first bytes of a file, or all of a shorter one.
std::string front_of(const RandomReader& file, std::int64_t bytes);

/// The text of a whole file. \throws Error kCorruption  it is larger than `limit_bytes`.
std::string whole_text(const RandomReader& file, std::int64_t limit_bytes);

/// The text of a small file without white space at its end. Empty if there is no such file, or if it is larger than
/// `limit_bytes`.
std::string small_text(const SourceStore& store, const std::string& path, std::int64_t limit_bytes);

}  // namespace shard
