/// \file
/// Computes the checksum of records that are decoded while being read, because later stages never see the stored bytes.
/// Inside formats/torch only.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "libshard/io/source_store.h"

namespace shard::torch_save {

/// Bytes [offset, offset + bytes) of `file`, from 0 on. What is read is summed, in any order and each byte once, unless
/// it comes in very many pieces.
/// \throws Error kCorruption (kind crc_mismatch)  from the read that completes them, where they do not match `crc32`;
///   messages call them `record`
/// Threads: safe. Memory: at most 65,536 runs. Cost: a CRC-32 of what is read.
std::shared_ptr<const RandomReader> summed_record(std::shared_ptr<const RandomReader> file, std::int64_t offset,
                                                  std::int64_t bytes, std::uint32_t crc32, std::string record);

}  // namespace shard::torch_save
