/// \file
/// Writes dcp checkpoints as torch 2.11 does: one `__R_0.distcp` for each rank that holds something, `.metadata` last.
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

/// A file that stands beside dcp's.
struct FileBeside {
  std::string name, content;
};

/// An object's item that is not made of its value.
struct ReadyItem {
  std::string content{};  ///< All of it; empty: the source has it.
  std::optional<Originals::Item> original{};
};

/// What a format that is made of dcp's files writes into its folder.
struct FolderContent {
  Flat flat;                                ///< The items.
  bool has_paths = true;                    ///< Whether planner_data says how names nest.
  std::vector<FileBeside> beside{};         ///< Written behind .metadata, in this order.
  HashMap<std::size_t, ReadyItem> ready{};  ///< By the object's number in `flat`.
};

/// The same for such a format. `content_of` is called once, by Writer::place; values that it makes lie in the target's
/// arena. \throws Error  what it throws.
std::unique_ptr<Writer> make_folder_writer(std::function<FolderContent(Catalog& target)> content_of);

}  // namespace shard::dcp
