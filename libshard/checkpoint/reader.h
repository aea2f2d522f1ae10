/// \file
/// Reader: an open source checkpoint, as the rest of libshard sees it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "libshard/catalog/catalog.h"
#include "libshard/checkpoint/container_report.h"
#include "libshard/io/source_store.h"

namespace shard {

/// An open source checkpoint. Its bytes are read by the executor, with positioned reads at the catalog's places.
class Reader {
 public:
  virtual ~Reader() = default;
  /// Metadata only, already checked. The reference stays valid as long as the reader.
  virtual const Catalog& catalog() const = 0;
  /// Makes sure that the storages of these tensors are located, in file order. Formats whose metadata holds all places
  /// do nothing. Not thread-safe.
  /// \throws Error kCorruption  what lies there contradicts the metadata.
  virtual void locate(std::span<const std::uint32_t> tensors) = 0;
  /// Loads the values of objects if they are not loaded yet. Until then an object that costs I/O to learn (a bytes item
  /// of dcp) is one entry whose value is null; afterwards its leaves are entries of their own, and `root` holds them as
  /// they are. Indices of tensors do not change. Not thread-safe. \throws Error kCorruption, kUnsupported
  virtual void load_objects() {}
  /// Bytes that load_objects would read now; INT64_MAX if unknown.
  virtual std::int64_t unread_object_bytes() const { return 0; }
  /// The open file of that index. Threads: safe. Ownership: shared; at most a few hundred are kept open.
  virtual std::shared_ptr<const RandomReader> file(std::uint32_t index) const = 0;
  /// Where the plain little-endian elements of a located storage are read: its file, or for one that is not plain a
  /// view that decodes on the way. Storage::offset counts there. Threads and ownership: as `file`.
  virtual std::shared_ptr<const RandomReader> bytes_of(std::uint32_t storage) const {
    return file(catalog().storages[storage].file);
  }
  /// Checks all of a file that opening, `locate` and reading elements do not look at, and hands over the runs of bytes
  /// whose checksums the container states. What is wrong goes to the report. Threads: safe for different files.
  /// \returns false where nothing but the catalog knows the file's containers: compressed storages then remain to be
  ///   read as they are. \pre all tensors that can be are located
  virtual bool check_container(std::uint32_t /*file*/, ContainerReport& /*report*/) const { return false; }
};

}  // namespace shard
