/// \file
/// Finds the records of zips by their local headers if no directory locates them, because the end of the file is
/// missing or the directory is damaged.
///
/// torch omits sizes and CRC from local headers and writes them in a descriptor after the data. So a record's end is
/// found backwards: a descriptor records the number of bytes before it, which must lead to the start of a header's
/// data, and its CRC-32 must be that of the bytes in between. Bytes inside a record's data are never taken for a
/// record, because a tensor may contain a zip. After a record whose end cannot be found, the scan continues after the
/// end of the next zip.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "formats/parts/zip/zip.h"
#include "libshard/core/arena.h"
#include "libshard/io/source_store.h"

namespace shard::zip {

/// A record that cannot be read.
struct LostRecord {
  std::string name;                ///< Empty if it is unknown.
  std::int64_t header_offset = 0;  ///< In the file.
  FindingKind kind{};
  std::string why;
};

/// A zip among others in a file, or the remains of one.
struct FoundZip {
  /// Offsets in the file. `end` is the start of the next zip, or the end of the remains.
  std::int64_t begin = 0, end = 0;
  std::vector<Record> records;   ///< The intact records, by offset; `data_offset` is set.
  std::vector<LostRecord> lost;  ///< By offset.
  bool is_whole = false;         ///< No record is lost, and the end record exists.
};

/// The zips in [begin, begin + bytes) of the file, by offset. Bytes that belong to no zip are skipped. The memory of
/// the scan is charged to the budget of `arena`.
/// \throws Error kCorruption  the budget is exhausted
/// Cost: the bytes are read twice, once for signatures and once for CRCs; n log n in signatures.
std::vector<FoundZip> scan_zips(const std::shared_ptr<const RandomReader>& file, std::int64_t begin, std::int64_t bytes,
                                Arena& arena);

/// CRC-32 of a record's content, after inflating it if it is deflated. \pre data_offset is set
/// \throws Error kCorruption  it cannot be read or inflated; kUnsupported  it uses a different compression
std::uint32_t content_crc(const std::shared_ptr<const RandomReader>& file, const Record& record);

// Recovers the readable records of a damaged zip.

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
