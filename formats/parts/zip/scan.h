/// \file
/// Looks for the records of zips by their local headers, where no directory says where they lie: the end of the file
/// is lost, or the directory is damaged.
///
/// torch leaves sizes and CRC out of local headers and writes them behind the data, so where a record ends is found
/// from there: a descriptor says how many bytes stand before it, which is where the data of one header begins, and its
/// CRC-32 must be that of the bytes between. What lies inside a record's data is never taken for a record, as a tensor
/// may hold a zip. After a record whose end cannot be found the scan goes on behind the next zip's end.
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
  std::string name;                ///< Empty where nothing says it.
  std::int64_t header_offset = 0;  ///< In the file.
  FindingKind kind{};
  std::string why;
};

/// A zip among others in a file, or what is left of one.
struct FoundZip {
  std::int64_t begin = 0, end = 0;  ///< Bytes of the file. `end`: where the next begins, or what is left ends.
  std::vector<Record> records;      ///< Those that are whole, by place; `data_offset` is set.
  std::vector<LostRecord> lost;     ///< By place.
  bool is_whole = false;            ///< Nothing is lost, and the end record follows.
};

/// The zips in [begin, begin + bytes) of the file, by place. Bytes that belong to none lie between them. The budget of
/// `arena` pays for what the scan remembers.
/// \throws Error kCorruption  the budget is spent
/// Cost: the bytes are read twice, once for signatures and once for CRCs; n log n in signatures.
std::vector<FoundZip> scan_zips(const std::shared_ptr<const RandomReader>& file, std::int64_t begin, std::int64_t bytes,
                                Arena& arena);

/// CRC-32 of a record's content, inflated where it is deflated. \pre data_offset is set
/// \throws Error kCorruption  it cannot be read or inflated; kUnsupported  it is compressed in another way
std::uint32_t content_crc(const std::shared_ptr<const RandomReader>& file, const Record& record);

}  // namespace shard::zip
