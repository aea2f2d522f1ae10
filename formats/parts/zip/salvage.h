/// \file
/// What can still be read of a damaged zip.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "formats/parts/zip/scan.h"
#include "formats/parts/zip/zip.h"

namespace shard::zip {

/// The records of one zip, all checked.
struct SalvagedZip {
  std::unique_ptr<ZipReader> zip;  ///< Of the whole records alone.
  std::vector<LostRecord> lost;
  std::string why_scanned;  ///< Why the directory was of no use; empty where it was.
  bool has_order = true;    ///< No record may have been lost unseen between its front and its first data record.
};

/// Checks every record of the zip at [begin, begin + bytes): by the directory where there is one, else by what the scan
/// finds (scan.h). A record that directory and local header name differently is there under both names, as far as no
/// other record has one of them: nothing tells which of them is damaged.
/// \throws Error  that of ZipReader, where nothing is found; kCorruption  the arena's budget is spent
/// Cost: reads every byte, twice where the directory is of no use.
SalvagedZip salvage_zip(const std::shared_ptr<const RandomReader>& file, std::int64_t begin, std::int64_t bytes,
                        Arena& arena);

}  // namespace shard::zip
