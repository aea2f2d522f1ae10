/// \file
/// Megatron-core's `integrity.json`: `{"algorithm": "sha256", "files": {NAME: HEX}}`, a SHA-256 of each whole file of a
/// folder but itself. Source: Megatron-LM PR 4305 of 2026-04.
#pragma once

#include <map>
#include <string>
#include <string_view>

namespace shard {

inline constexpr std::string_view kIntegrityName = "integrity.json";

/// The hashes in hexadecimal, lower case, by path below the folder.
/// \throws Error kCorruption (kind bad_header)  not such a document; kUnsupported  another algorithm.
std::map<std::string, std::string> parse_integrity(std::string_view text, const std::string& file);

}  // namespace shard
