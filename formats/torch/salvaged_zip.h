/// \file
/// Opens the zip of a torch.save file for repair.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "formats/parts/zip/salvage.h"

namespace shard::torch_save {

/// The intact records of the zip at [begin, begin + bytes): its pickle, the byte order, and any storages.
/// \throws Error kCorruption  the pickle or the byte order is lost. Other errors: see salvage_zip.
zip::SalvagedZip salvage_saved_zip(const std::shared_ptr<const RandomReader>& file, std::int64_t begin,
                                   std::int64_t bytes, Arena& arena, const std::string& shown);

/// The reason why `data/KEY` is not intact: "record data/3: its bytes do not match their checksum".
std::string why_lost(std::span<const zip::LostRecord> lost, std::string_view key);

}  // namespace shard::torch_save
