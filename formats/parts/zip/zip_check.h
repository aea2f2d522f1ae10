/// \file
/// Checks the parts of a zip that reading its records skips: the fields of local headers, padding, descriptors, the
/// directory's attributes and the end records. Each is compared with the other places that contain the same value.
///
/// torch writes every version, time and attribute as 0, fills padding with 'Z' and adds no comment. If most entries of
/// a zip are like that, torch wrote it, and all entries must be like that, so each of its bits is checked. In zips of
/// other programs, versions, attributes, unknown extra fields and comments occur only once, so they cannot be checked.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "formats/parts/zip/zip.h"
#include "libshard/core/findings.h"

namespace shard::zip {

/// A record with a valid local header. `data` is the offset of its bytes in the file.
using EachRecord = std::function<void(const ZipReader& zip, const Record& record, std::int64_t data)>;

/// Checks the zip at [begin, begin + bytes) of `file`. Calls `each` for its records in the directory's order, which
/// must check their content. Reports faults as kCorruption, with the kinds of ZipReader; warns if checksums are
/// missing.
/// Cost: that of opening it, and one read for each record, or for each 8 KiB of small records.
void check_zip(const std::shared_ptr<const RandomReader>& file, std::int64_t begin, std::int64_t bytes,
               Findings& findings, const EachRecord& each);

}  // namespace shard::zip
