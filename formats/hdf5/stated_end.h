/// \file
/// Where a file ends by its superblock. Source: "HDF5 File Format Specification Version 3.0", II.A. Inside formats/hdf5
/// only.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "libshard/core/findings.h"
#include "libshard/io/source_store.h"

namespace shard::hdf5 {

/// The end that the superblock at the file's beginning states, in bytes; nothing where there is none (behind a user
/// block), or where addresses are not 8 bytes. \throws Error kNotFound, kCorruption  the file cannot be read.
std::optional<std::int64_t> stated_end(const RandomReader& file);

/// Warns of bytes behind it, which HDF5 itself passes by. `shown` is the file's name.
void warn_of_bytes_behind(const RandomReader& file, const std::string& shown, Findings& findings);

}  // namespace shard::hdf5
