/// \file
/// TreeFiles: a target whose files are torch.save files, each with a separate tree. Inside formats/deepspeed only.
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

/// One file. Its kTensor values are of two kinds. Numbers of source tensors are copied into the file, with their whole
/// storages. Numbers from TreeFiles::number_of on are stored tensors of the target.
struct TreeFile {
  std::string path;  ///< The path in the destination, with '/'.
  int rank = -1;     ///< See File.
  /// Builds the tree in `arena`, with the same result at each call. Threads: safe.
  std::function<const Value*(Arena& arena)> tree;
};

/// A small text file.
struct TextFile {
  std::string path, content;
};

/// Builds a target, whose catalog receives entries for the content of all files.
class TreeFiles {
 public:
  /// An empty target of `format` for tensors of `source`. Ownership: `source` must outlive everything built from this.
  TreeFiles(const Catalog& source, std::string_view format);

  /// Adds a row of `elements` elements with a separate storage in file number `file`. \returns its index among the
  /// stored tensors.
  std::uint32_t add_row(std::uint32_t file, int rank, DType dtype, std::int64_t elements, std::uint16_t location);
  /// The number of the kTensor value for it in a tree.
  std::int64_t number_of(std::uint32_t stored) const { return source_tensors_ + stored; }
  /// Starts the target's tensor with the elements of the source's. Then add_run sets the location of its elements.
  void begin_tensor(std::uint32_t source);
  /// Elements [begin, begin + count) of the tensor are those of a row, starting at element `first`. Called in order.
  void add_run(std::uint32_t stored, std::int64_t begin, std::int64_t count, std::int64_t first);

  /// Adds the source's whole tensor, with its shape or as one row, in a separate storage. \returns as add_row.
  std::uint32_t add_whole(std::uint32_t file, std::uint32_t source, bool as_row);

  /// Adds the source tensors that the trees name, and makes the writer of all files. Called once.
  std::unique_ptr<Writer> finish(std::vector<TreeFile> files, std::vector<TextFile> texts);

  Catalog target;

 private:
  const Catalog& source_;
  std::int64_t source_tensors_;
  CatalogBuilder builder_;
};

}  // namespace shard::deepspeed
