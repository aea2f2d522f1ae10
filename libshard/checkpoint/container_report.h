/// \file
/// ContainerReport: what a reader tells of a file's container beside its elements, for whoever checks the whole file.
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
  std::optional<std::uint32_t> crc32{};  ///< What the container states; none: that the bytes can be read is the check.
  std::string name{};                    ///< For messages: "record 'archive/data/0'".
  /// Opens the view that decodes a compressed run; empty: the run lies in the file as it is.
  std::function<std::shared_ptr<const RandomReader>()> decoded{};
};

/// Threads: one at a time.
class ContainerReport {
 public:
  virtual ~ContainerReport() = default;
  /// Bytes that the caller shall read and compare.
  virtual void on_crc_run(CrcRange bytes) = 0;
  /// So many CRC-32s were compared already.
  virtual void on_crcs_checked(std::int64_t crc32s) = 0;
  /// A pickle of the file names "module.name".
  virtual void on_global(std::string_view name) = 0;
  /// Takes what is wrong with headers, directories, indexes and what lies between records.
  virtual Findings& findings() = 0;
};

}  // namespace shard
