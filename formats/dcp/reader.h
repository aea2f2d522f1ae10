/// \file
/// Opens dcp checkpoints. Opening reads the metadata, the sizes of the files, and checks bytes items for tensors; items
/// with tensors are loaded. `locate` reads the front and the end of items. `load_objects` reads the other bytes items.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "formats/format.h"

namespace shard::dcp {

/// The differences between a folder of torch's own and one of a format that is based on dcp's files.
struct FolderForm {
  std::string_view format = "dcp";
  /// A bytes item is one object, in which tensors and classes outside the list are opaque.
  bool keeps_objects_whole = false;
  std::string_view common_file{};  ///< A torch.save file of plain data beside the items. Empty or absent: none.
  std::string_view common_item{};  ///< The name of the bytes item with the same data; empty: none.
  bool needs_common = false;       ///< A complete save has one of the two; if both are missing, there is a warning.
  std::optional<std::int64_t> iteration{};                ///< See Originals.
  bool sets_short_apart = false, names_megatron = false;  ///< See MetadataOptions.
  /// Tensors that cannot be read as tensors become opaque objects, with a warning; null: there are none.
  bool (*is_unreadable)(std::string_view name) = nullptr;
  std::string_view why_unreadable{};  ///< The reason for the warning, see set_apart.
};

/// True for a folder with `.metadata`, and for one that torch.distributed.checkpoint wrote and that lacks it.
bool detect(const Source& source);

/// \throws Error kNotFound     the metadata, a rank's metadata or a file that it names is missing.
/// \throws Error kCorruption   see parse_metadata and merge_ranks; a file is too short for its items; items overlap;
///   chunks do not cover a tensor.
/// \throws Error kUnsupported  see parse_metadata.
std::unique_ptr<Reader> open(const Source& source, const OpenOptions& options);

/// Opens a folder of such a form in the same way. \pre it is a folder
std::unique_ptr<Reader> open_folder(const SourceStore& store, const std::string& folder, const OpenOptions& options,
                                    const FolderForm& form);

}  // namespace shard::dcp
