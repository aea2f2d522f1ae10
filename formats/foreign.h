/// \file
/// Recognises checkpoints that this build cannot read, so that they are refused by name.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "formats/format.h"

namespace shard {

/// Recognises kinds that a format of this build would accept by mistake: TorchScript (a zip), ByteCheckpoint (a folder
/// with .metadata), Git LFS pointers, and Format::refuse_part of all formats. Call it before the formats' detect.
/// \returns the Error to throw, or nothing.
std::optional<Error> foreign_look_alike(const Source& source);

/// Recognises kinds that no format of this build accepts: GGUF, torchsnapshot, Orbax, ..., and
/// Format::explain_refusal of all formats. Call it after the formats' detect.
std::optional<Error> foreign_kind(const Source& source);

/// True for one step of nanotron, whose optimizer's files are readable although its weights are not.
bool is_nanotron_folder(const SourceStore& store, const std::string& folder);

/// The error for a kind of checkpoint that this build cannot read: `what` is "a GGUF file".
Error unreadable_kind(std::string_view what, const std::string& path);

/// The error for a placeholder that a version control system or a cache left for content that was never fetched: a
/// pointer, or a dangling link. Of kind missing_file.
std::optional<Error> pointer_at(const SourceStore& store, const std::string& path);

/// The error for a web page that a server sent instead of the file, such as a login or an error. Call it only for files
/// whose content is damaged.
std::optional<Error> web_page_at(const SourceStore& store, const std::string& path);

}  // namespace shard
