/// \file
/// Little-endian numbers and the fixed parts of zip structures (APPNOTE.TXT 6.3.10, section 4.3).
///
///     local header        30 bytes + name + extra            data            descriptor (flag bit 3)
///     directory entry     46 bytes + name + extra + comment
///     zip64 end record    56 bytes      zip64 locator 20 bytes      end record 22 bytes + comment
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>

namespace shard::zip {

inline constexpr std::uint32_t kLocalSignature = 0x04034b50, kDirectorySignature = 0x02014b50,
                               kDescriptorSignature = 0x08074b50, kZip64EndSignature = 0x06064b50,
                               kLocatorSignature = 0x07064b50, kEndSignature = 0x06054b50;
inline constexpr std::int64_t kLocalBytes = 30, kDirectoryBytes = 46, kZip64EndBytes = 56, kLocatorBytes = 20,
                              kEndBytes = 22;
inline constexpr std::uint16_t kZip64Extra = 1;
inline constexpr std::uint16_t kDescriptorFlag = 0x0008, kUtf8Flag = 0x0800;
inline constexpr std::uint32_t kMax32 = 0xFFFFFFFF;

/// The number at `at`. \pre it is inside `data`; the host is little-endian, as every target of this project is.
template <class T>
T load(std::span<const std::byte> data, std::size_t at) {
  T number;
  std::memcpy(&number, data.data() + at, sizeof number);
  return number;
}

template <class T>
void store(std::string& out, T number) {
  out.append(reinterpret_cast<const char*>(&number), sizeof number);
}

}  // namespace shard::zip
