/// \file
/// Recovers the readable records of a damaged zip.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "formats/parts/zip/scan.h"
#include "formats/parts/zip/zip.h"

namespace shard::zip {

/// The records of one zip, after all were checked.
struct SalvagedZip {
  std::unique_ptr<ZipReader> zip;  ///< Contains only the intact records.
  std::vector<LostRecord> lost;
  std::string why_scanned;  ///< The reason why the directory was unusable; empty if it was used.
  /// True if no record between the zip's front and its first data record can be missing unnoticed.
  bool has_order = true;
};

/// Checks every record of the zip at [begin, begin + bytes). The records come from the directory if it is usable,
/// otherwise from the scan (scan.h). If the directory and the local header name a record differently, it is added under
/// both names, unless another record has that name, because it is unknown which name is damaged.
/// \throws Error  the error of ZipReader if nothing is found; kCorruption  the arena's budget is exhausted
/// Cost: reads every byte; twice if the directory is unusable.
SalvagedZip salvage_zip(const std::shared_ptr<const RandomReader>& file, std::int64_t begin, std::int64_t bytes,
                        Arena& arena);

}  // namespace shard::zip
