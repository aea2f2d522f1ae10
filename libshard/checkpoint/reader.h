/// \file Reader: an open source checkpoint, as the rest of libshard uses it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "libshard/catalog/catalog.h"
#include "libshard/checkpoint/container_report.h"
#include "libshard/io/source_store.h"

namespace shard {

/// An open source checkpoint. The executor reads its bytes with positioned reads at the offsets that the catalog gives.
class Reader {
 public:
  virtual ~Reader() = default;
  /// The checkpoint's metadata, already validated. The reference stays valid as long as the reader.
  virtual const Catalog& catalog() const = 0;
  /// Determines the file offsets of these tensors' storages, in file order. Formats whose metadata contains all offsets
  /// do nothing. Not thread-safe.
  /// \throws Error kCorruption  the bytes of a storage contradict the metadata.
  virtual void locate(std::span<const std::uint32_t> tensors) = 0;
  /// Loads the values of objects that are not loaded yet. Until then, an object whose value costs I/O (a bytes item of
  /// dcp) is one entry with a null value. Afterwards each of its leaves is a separate entry, and `root` contains the
  /// values themselves. Indices of tensors do not change. Not thread-safe.
  /// \throws Error kCorruption, kUnsupported
  virtual void load_objects() {}
  /// Bytes that load_objects would read now; INT64_MAX if unknown.
  virtual std::int64_t unread_object_bytes() const { return 0; }
  /// The open file with this index. Threads: safe. Ownership: shared. At most a few hundred files are kept open.
  virtual std::shared_ptr<const RandomReader> file(std::uint32_t index) const = 0;
  /// The reader of a located storage's plain little-endian elements: the file itself, or a view that decodes a storage
  /// that is not plain. Storage::offset counts in this reader. Threads and ownership: as `file`.
  virtual std::shared_ptr<const RandomReader> bytes_of(std::uint32_t storage) const {
    return file(catalog().storages[storage].file);
  }
  /// Checks the parts of a file that opening, `locate` and reading elements do not check. The report receives the
  /// findings, and the runs of bytes whose checksums the container records. Threads: safe for different files.
  /// \returns false if only the catalog knows the file's containers. The caller must then read compressed storages
  ///   without decoding them. \pre all tensors that can be located are located
  virtual bool check_container(std::uint32_t /*file*/, ContainerReport& /*report*/) const { return false; }
};

}  // namespace shard
