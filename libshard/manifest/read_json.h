/// \file Reads small JSON documents of checkpoints, such as manifests. Inside libshard/manifest only.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "libshard/core/error.h"

namespace shard {

/// An error kCorruption of kind bad_header. `document` is the document's name in the message.
Error bad_document(std::string_view document, const std::string& message);

/// Parses a document. Cost: linear (parse_json).
/// \throws Error  bad_document: the text is not JSON, nests deeper than `max_depth`, repeats a key, or contains too
///   many tiny values.
nlohmann::json read_json(std::string_view text, std::string_view document, int max_depth);

}  // namespace shard
