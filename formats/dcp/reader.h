/// \file
/// Opens dcp checkpoints. What is read when: metadata, the files' sizes, and of bytes items whether tensors are in them
/// (then they are loaded) at open; the front and the end of items in `locate`; other bytes items in `load_objects`.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "formats/format.h"

namespace shard::dcp {

/// How a folder of dcp's files differs from torch's own, for formats that are made of them.
struct FolderForm {
  std::string_view format = "dcp";
  /// Bytes items are objects, whatever lies in them: tensors inside are opaque, and so are classes outside the list.
  bool keeps_objects_whole = false;
  std::string_view common_file{};  ///< A torch.save file of plain data beside the items. Empty or absent: none.
  std::string_view common_item{};  ///< The name of the bytes item that holds the same; empty: none.
  bool needs_common = false;       ///< One of the two is there in a whole save; without them there is a warning.
  bool sets_short_apart = false, names_megatron = false;  ///< See MetadataOptions.
  /// Tensors that cannot be read for what they are become opaque objects, with a warning; null: there are none.
  bool (*is_unreadable)(std::string_view name) = nullptr;
  std::string_view why_unreadable{};  ///< As set_apart has it.
};

/// A folder with `.metadata`, or one that torch.distributed.checkpoint wrote and that lacks it.
bool detect(const Source& source);

/// \throws Error kNotFound     metadata, a rank's metadata or a file that it names is absent.
/// \throws Error kCorruption   see parse_metadata and merge_ranks; a file is shorter than its items say; items lie over
///   each other; chunks do not cover a tensor.
/// \throws Error kUnsupported  see parse_metadata.
std::unique_ptr<Reader> open(const Source& source, const OpenOptions& options);

/// The same of a folder of such a form. \pre it is a folder
std::unique_ptr<Reader> open_folder(const SourceStore& store, const std::string& folder, const OpenOptions& options,
                                    const FolderForm& form);

}  // namespace shard::dcp
