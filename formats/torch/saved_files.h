/// \file
/// The torch.save files of one checkpoint and the storages that lie in them. What torch and torch-ranks share.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/torch/tensor_pickle.h"
#include "libshard/catalog/catalog.h"
#include "libshard/core/findings.h"
#include "libshard/io/source_store.h"

namespace shard::torch_save {

struct SavedFilesOptions {
  std::string folder;                         ///< What names lie in; empty when they are paths as given.
  bool opaque_globals = false;                ///< See OpenOptions.
  Findings* findings = &throwing_findings();  ///< Of the open source; not null.
};

/// Zips and legacy files alike. Threads: `file` and `bytes_of` are safe; the rest by one.
class SavedFiles {
 public:
  /// `catalog` receives files and storages. Ownership: it and `store` must outlive this.
  SavedFiles(const SourceStore& store, Catalog& catalog, const SavedFilesOptions& options);
  ~SavedFiles();

  /// Opens the next file, which becomes catalog.files.back() (rank -1), and reads its pickle. Its number is the file's
  /// index in the catalog.
  /// \returns the tree as the pickle says it: tensors are still calls (see as_tensor). In `tree`, null: in the
  /// catalog's arena. What it refers to must live as long as this, but for the tree of a zip, which may end earlier.
  /// \throws Error kCorruption, kNotFound, kUnsupported  naming the file; the file then stays in the catalog, empty.
  Value* add(const std::string& name, Arena* tree = nullptr);

  /// The same of a file that lies in memory; messages call it `shown`. Ownership: `bytes` must outlive this.
  Value* add_bytes(std::string_view bytes, const std::string& shown);

  /// Who wrote file number `file`, for people: "zip, torch>=2.1", "legacy, torch<1.6".
  std::string_view version(std::uint32_t file) const;

  /// See SavedFile::saved_as.
  const std::string& saved_as(std::uint32_t file) const;

  /// The storage that `view`, a tensor of file number `file`, looks into; added to the catalog when it is new. Views
  /// whose elements are decoded in different ways (byte order, conj, neg) have storages of their own over one record.
  /// \throws Error kCorruption  the record is absent (kind missing_file) or has another size (kind shape_mismatch);
  ///   for repair it is a storage of its own that is lost.
  std::uint32_t storage_of(std::uint32_t file, const TensorView& view);

  /// For repair: whether storage_of has found that its bytes are lost.
  bool is_lost(std::uint32_t storage) const;
  /// The sink of the open source, see SavedFilesOptions.
  Findings& findings() const;

  /// Sets Storage::offset of those that have none yet, in file order. \throws Error kCorruption
  void locate(std::vector<std::uint32_t> storages);
  /// The same for all storages of these tensors of the catalog.
  void locate_tensors(std::span<const std::uint32_t> tensors);

  /// The elements of a small integer tensor in row-major order (a mesh's ranks), in one read.
  /// \throws Error kCorruption  more than `limit` elements, or as many from the first to the last, or no integers.
  std::vector<std::int64_t> integers(std::uint32_t file, const TensorView& view, std::int64_t limit);
  /// The bytes of `span` elements from the tensor's first one on, in one read. \pre few, inside the storage
  std::vector<std::byte> read_span(std::uint32_t file, const TensorView& view, std::int64_t span);

  /// See Reader.
  std::shared_ptr<const RandomReader> file(std::uint32_t index) const;
  std::shared_ptr<const RandomReader> bytes_of(std::uint32_t storage) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace shard::torch_save
