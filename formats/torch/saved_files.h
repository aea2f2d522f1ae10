/// \file
/// The torch.save files of one checkpoint and their storages; shared by torch and torch-ranks.
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
  std::string folder;                         ///< The folder of the names; empty if they are paths as given.
  bool opaque_globals = false;                ///< See OpenOptions.
  Findings* findings = &throwing_findings();  ///< The findings of the open source; not null.
};

/// Opens zips and legacy files. Threads: `file` and `bytes_of` are safe; one thread for the other members.
class SavedFiles {
 public:
  /// `catalog` receives files and storages. Ownership: it and `store` must outlive this.
  SavedFiles(const SourceStore& store, Catalog& catalog, const SavedFilesOptions& options);
  ~SavedFiles();

  /// Opens the next file, which becomes catalog.files.back() (rank -1), and reads its pickle. Its number is the file's
  /// index in the catalog.
  /// \returns the tree of the pickle, in which tensors are still calls (see as_tensor). It is stored in `tree`, or if
  ///   that is null, in the catalog's arena. The arena must live as long as this, except for the tree of a zip.
  /// \throws Error kCorruption, kNotFound, kUnsupported  with the file's name; the file then stays in the catalog,
  ///   without content.
  Value* add(const std::string& name, Arena* tree = nullptr);

  /// Does the same for a file in memory, which messages call `shown`. Ownership: `bytes` must outlive this.
  Value* add_bytes(std::string_view bytes, const std::string& shown);

  /// The writer's version of file number `file` as a text for users: "zip, torch>=2.1", "legacy, torch<1.6".
  std::string_view version(std::uint32_t file) const;

  /// See SavedFile::saved_as. Empty for a file that could not be opened.
  std::string_view saved_as(std::uint32_t file) const;

  /// The storage of `view`, a tensor of file number `file`; added to the catalog if it is new. Views whose elements are
  /// decoded differently (byte order, conj, neg) have separate storages over one record.
  /// \throws Error kCorruption  the record is missing (kind missing_file) or has a different size (kind
  ///   shape_mismatch). For repair, the result is a new storage that is marked as lost.
  std::uint32_t storage_of(std::uint32_t file, const TensorView& view);

  /// For repair: whether storage_of marked it as lost.
  bool is_lost(std::uint32_t storage) const;
  /// The sink of the open source, see SavedFilesOptions.
  Findings& findings() const;

  /// Sets Storage::offset of those that have none yet, in file order. \throws Error kCorruption
  void locate(std::vector<std::uint32_t> storages);
  /// Does the same for all storages of these tensors of the catalog.
  void locate_tensors(std::span<const std::uint32_t> tensors);

  /// The elements of a small integer tensor in row-major order (such as a mesh's ranks), in one read.
  /// \throws Error kCorruption  there are more than `limit` elements, or more than that from the first to the last, or
  ///   they are not integers.
  std::vector<std::int64_t> integers(std::uint32_t file, const TensorView& view, std::int64_t limit);
  /// The bytes of `span` elements from the tensor's first one on, in one read. \pre `span` is small and inside the
  /// storage
  std::vector<std::byte> read_span(std::uint32_t file, const TensorView& view, std::int64_t span);

  /// See Reader.
  std::shared_ptr<const RandomReader> file(std::uint32_t index) const;
  std::shared_ptr<const RandomReader> bytes_of(std::uint32_t storage) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace shard::torch_save
