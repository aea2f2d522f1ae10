/// \file Megatron-Core's `integrity.json`: `{"algorithm": "sha256", "files": {NAME: HEX}}`, with the SHA-256 of each
///   whole file in a folder, except its own. Source: Megatron-LM PR 4305 of 2026-04.
#pragma once

#include <map>
#include <string>
#include <string_view>

namespace shard {

inline constexpr std::string_view kIntegrityName = "integrity.json";

/// Parses the document. \returns the hashes in lower-case hexadecimal, by path relative to the folder.
/// \throws Error kCorruption (kind bad_header)  the text is not such a document; kUnsupported  a different algorithm.
std::map<std::string, std::string> parse_integrity(std::string_view text, const std::string& file);

}  // namespace shard
