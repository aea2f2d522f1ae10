/// \file ContainerReport: receives a reader's findings about a file's container, apart from its elements. verify uses
///   it to check whole files.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "libshard/core/findings.h"
#include "libshard/io/source_store.h"

namespace shard {

/// A run of bytes that is checked by reading all of it.
struct CrcRange {
  std::int64_t offset = 0, bytes = 0;    ///< In the file, or in the decoded view.
  std::optional<std::uint32_t> crc32{};  ///< The recorded CRC-32. Without one, the bytes need only be readable.
  std::string name{};                    ///< Used in messages, for example "record 'archive/data/0'".
  /// Opens the view that decodes a compressed run. Empty: the run is stored uncompressed in the file.
  std::function<std::shared_ptr<const RandomReader>()> decoded{};
};

/// Threads: one at a time.
class ContainerReport {
 public:
  virtual ~ContainerReport() = default;
  /// Requests that the caller reads these bytes and compares their CRC-32.
  virtual void on_crc_run(CrcRange bytes) = 0;
  /// Counts CRC-32s that the reader has already compared.
  virtual void on_crcs_checked(std::int64_t crc32s) = 0;
  /// Records a global "module.name" that a pickle of the file uses.
  virtual void on_global(std::string_view name) = 0;
  /// Receives findings about headers, directories, indexes and the bytes between records.
  virtual Findings& findings() = 0;
};

}  // namespace shard
