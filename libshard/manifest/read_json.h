/// \file
/// Reads small JSON documents that lie beside checkpoints. Inside libshard/manifest only.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "libshard/core/error.h"

namespace shard {

/// kCorruption of kind bad_header; `document` names it for people.
Error bad_document(std::string_view document, const std::string& message);

/// Cost: linear (parse_json).
/// \throws Error  bad_document: it is not JSON, nests deeper than `max_depth`, repeats a key, or holds too many tiny
///   values.
nlohmann::json read_json(std::string_view text, std::string_view document, int max_depth);

}  // namespace shard
