/// \file
/// All of a zip that reading its records does not look at: the fields of local headers, padding, descriptors, the
/// directory's attributes and the end records, each against the other places that say the same.
///
/// torch writes every version, time and attribute as 0, fills padding with 'Z' and leaves no comment. A zip whose
/// entries are mostly like that was written by torch, and then all of them must be: so each of its bits is checked. Of
/// zips that other programs wrote, versions, attributes, unknown extra fields and comments are stated once only, so
/// nothing can be said of them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "formats/parts/zip/zip.h"
#include "libshard/core/findings.h"

namespace shard::zip {

/// A record whose local header is sound. `data`: where its bytes begin in the file.
using EachRecord = std::function<void(const ZipReader& zip, const Record& record, std::int64_t data)>;

/// Checks the zip at [begin, begin + bytes) of `file`; calls `each` for its records in the directory's order. Their
/// content is for `each` to check.
/// Reports (kCorruption) what is wrong, of the kinds that ZipReader throws; warns where checksums are missing.
/// Cost: that of opening it, and one read for each record, or for each 8 KiB of small ones.
void check_zip(const std::shared_ptr<const RandomReader>& file, std::int64_t begin, std::int64_t bytes,
               Findings& findings, const EachRecord& each);

}  // namespace shard::zip
