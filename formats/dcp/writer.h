/// \file
/// Writes dcp checkpoints as torch 2.11 does: one `__R_0.distcp` for each rank with content, then `.metadata`.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "formats/dcp/flatten.h"
#include "formats/format.h"
#include "libshard/catalog/originals.h"
#include "libshard/checkpoint/writer.h"

namespace shard::dcp {

std::unique_ptr<Writer> make_writer(const WriteOptions& options);

/// An additional file in the folder.
struct FileBeside {
  std::string name, content;
};

/// An object's item that is already encoded.
struct ReadyItem {
  std::string content{};  ///< The whole item; if empty, it is copied from the source.
  std::optional<Originals::Item> original{};
};

/// The content of a folder of a format that is based on dcp's files.
struct FolderContent {
  Flat flat;                                ///< The items.
  bool has_paths = true;                    ///< Whether planner_data records how names nest.
  std::vector<FileBeside> beside{};         ///< Written after .metadata, in this order.
  HashMap<std::size_t, ReadyItem> ready{};  ///< Keyed by the object's number in `flat`.
};

/// Makes a writer for such a format. Writer::place calls `content_of` once. The values that it returns are stored in
/// the target's arena. \throws Error  the errors of `content_of`.
std::unique_ptr<Writer> make_folder_writer(std::function<FolderContent(Catalog& target)> content_of);

}  // namespace shard::dcp
