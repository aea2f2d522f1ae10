/// \file
/// TreeFiles: a target whose files are torch.save files, each with a tree of its own. Inside formats/deepspeed only.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "libshard/catalog/catalog_builder.h"
#include "libshard/checkpoint/writer.h"

namespace shard::deepspeed {

/// One file. Its kTensor values name tensors of the source by their index, which are copied into the file with the
/// storages that they look into; or, from TreeFiles::number_of on, stored tensors of the target.
struct TreeFile {
  std::string path;  ///< In the destination, with '/'.
  int rank = -1;     ///< See File.
  /// Makes the tree in `arena`, the same at each call. Threads: safe.
  std::function<const Value*(Arena& arena)> tree;
};

/// A small file with a text alone.
struct TextFile {
  std::string path, content;
};

/// A target in the making: the catalog, which gets entries for all that is in the files.
class TreeFiles {
 public:
  /// An empty target of `format` for tensors of `source`. Ownership: `source` must outlive all that is made of this.
  TreeFiles(const Catalog& source, std::string_view format);

  /// A row of `elements` elements with a storage of its own in file number `file`. \returns its index among the stored.
  std::uint32_t add_row(std::uint32_t file, int rank, DType dtype, std::int64_t elements, std::uint16_t location);
  /// The kTensor value that stands for it in a tree.
  std::int64_t number_of(std::uint32_t stored) const { return source_tensors_ + stored; }
  /// Begins the target's tensor that is made of the source's; add_run then says where its elements lie.
  void begin_tensor(std::uint32_t source);
  /// Elements [begin, begin + count) of the tensor are those of a row from `first` on. In order.
  void add_run(std::uint32_t stored, std::int64_t begin, std::int64_t count, std::int64_t first);

  /// The source's tensor whole, with its shape or as one row, in a storage of its own. \returns as add_row.
  std::uint32_t add_whole(std::uint32_t file, std::uint32_t source, bool as_row);

  /// Adds what the trees name of the source and makes the writer of all. Called once.
  std::unique_ptr<Writer> finish(std::vector<TreeFile> files, std::vector<TextFile> texts);

  Catalog target;

 private:
  const Catalog& source_;
  std::int64_t source_tensors_;
  CatalogBuilder builder_;
};

}  // namespace shard::deepspeed
