/// \file
/// Writes dcp checkpoints as torch 2.11 does: one `__R_0.distcp` for each rank that holds something, `.metadata` last.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "formats/dcp/flatten.h"
#include "formats/format.h"
#include "libshard/checkpoint/writer.h"

namespace shard::dcp {

std::unique_ptr<Writer> make_writer(const WriteOptions& options);

/// A file that stands beside dcp's.
struct FileBeside {
  std::string name, content;
};

/// What a format that is made of dcp's files writes into its folder.
struct FolderContent {
  Flat flat;                       ///< The items.
  bool has_paths = true;           ///< Whether planner_data says how names nest.
  std::vector<FileBeside> beside;  ///< Written behind .metadata, in this order.
};

/// The same for such a format. `content_of` is called once, by Writer::place; values that it makes lie in the target's
/// arena. \throws Error  what it throws.
std::unique_ptr<Writer> make_folder_writer(std::function<FolderContent(Catalog& target)> content_of);

/// A complete torch.save zip of an object without tensors. \throws Error kUnsupported  it holds opaque values.
std::string saved_object(const std::string& folder, const Value& value);

}  // namespace shard::dcp
