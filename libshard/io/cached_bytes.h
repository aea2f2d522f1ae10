/// \file Copies bytes that the kernel's page cache has, faster than a system call. Inside libshard/io and libshard/exec
///   only.
///
/// A system call copies through the processor's caches, so each line of the destination is read before it is
/// overwritten. This loop copies mapped pages and writes past the caches: for 8 MiB in two thirds of the time. It is
/// slower for memory that is used at once, such as a buffer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace shard {

/// Fills `out` with the bytes of an open file from `offset_bytes`. \param crc  if not null, receives their CRC-32
/// \returns false if the caller has to read them, and fails as it does: they are less than 2 MiB, the page cache lacks
///   some, the file system does not report it, or a page cannot be read, such as after a truncation. `out` is then
///   undefined.
/// Threads: any. The first call sets a handler of SIGBUS, which passes on the signals of other code to the handler
/// before it. If a handler that was set later replaced it, or the thread blocks SIGBUS, the result is false.
bool copy_cached_bytes(int descriptor, std::int64_t offset_bytes, std::span<std::byte> out, std::uint32_t* crc);

}  // namespace shard
