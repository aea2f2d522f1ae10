/// \file
/// The zip of torch.save, opened for repair.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "formats/parts/zip/salvage.h"

namespace shard::torch_save {

/// What is whole of the zip at [begin, begin + bytes): its pickle, what says its byte order, and any storages.
/// \throws Error kCorruption  the pickle is lost, or what says the byte order. Others: see salvage_zip.
zip::SalvagedZip salvage_saved_zip(const std::shared_ptr<const RandomReader>& file, std::int64_t begin,
                                   std::int64_t bytes, Arena& arena, const std::string& shown);

/// Why `data/KEY` is not among the whole records: "record data/3: its bytes do not match their checksum".
std::string why_lost(std::span<const zip::LostRecord> lost, std::string_view key);

}  // namespace shard::torch_save
