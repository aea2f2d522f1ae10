/// \file
/// Recognises the content of a path.
#pragma once

#include <vector>

#include "formats/finder.h"
#include "formats/format.h"

namespace shard {

/// The checkpoints that a search below a folder finds. A repair also needs the damaged ones, because an intact one
/// beside them is not the one that it should read. A damaged one is recognised by the names of its files.
enum class SearchFor { kIntact, kDamagedToo };

/// The kind of a source: a checkpoint, or a folder above checkpoints.
struct Recognised {
  const Format* format = nullptr;  ///< Null if it is not a checkpoint itself.
  /// If `format` is null: the checkpoints in it, at least one; see find_checkpoints.
  std::vector<FoundCheckpoint> below{};
};

/// Like detect_format, but accepts a folder above checkpoints. \throws Error  as detect_format
Recognised recognise(const Source& source, SearchFor search = SearchFor::kIntact);

/// The checkpoints in a folder and below it, see find_checkpoints. Empty if `source` is not one folder.
std::vector<FoundCheckpoint> checkpoints_below(const Source& source, SearchFor search = SearchFor::kIntact);

/// The format of `source`, by its content. Plug-ins are loaded if no other format matches.
/// \throws Error kNotFound  it does not exist; kCorruption  it matches no format or two (names them), or it is a folder
///   above checkpoints (suggests them); kUnsupported  it is of a known kind that this build cannot read
///   (ByteCheckpoint, TorchScript, GGUF, ...), by name.
const Format& detect_format(const Source& source, SearchFor search = SearchFor::kIntact);

}  // namespace shard
