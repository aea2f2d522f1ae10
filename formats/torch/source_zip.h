/// \file
/// The zip of a torch.save file that is read: its byte order, and its intact records for repair.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "formats/parts/zip/scan.h"
#include "formats/parts/zip/zip.h"

namespace shard::torch_save {

/// The intact records of the zip at [begin, begin + bytes): its pickle, the byte order, and any storages.
/// \throws Error kCorruption  the pickle or the byte order is lost. Other errors: see salvage_zip.
zip::SalvagedZip salvage_saved_zip(const std::shared_ptr<const RandomReader>& file, std::int64_t begin,
                                   std::int64_t bytes, Arena& arena, const std::string& shown);

/// The reason why `data/KEY` is not intact: "record data/3: its bytes do not match their checksum".
std::string why_lost(std::span<const zip::LostRecord> lost, std::string_view key);

/// Whether the elements of the zip's records are big-endian. Zips of torch before 2.1 have no `byteorder` record and
/// are little-endian. A missing record counts as such only if no other record can be it under a damaged name. So the
/// local header of each record that is not a storage must have the same name as the directory.
/// \throws Error kCorruption (kind bad_header)  the record is neither "little" nor "big"; such names differ.
/// Cost: one small read, or one for each record that is not a storage.
bool is_big_endian(const zip::ZipReader& zip);

}  // namespace shard::torch_save
