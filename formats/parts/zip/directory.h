/// \file
/// Parses and checks the entries of a zip's central directory and its zip64 fields. Only for use inside this folder.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "formats/parts/zip/zip.h"
#include "libshard/core/error.h"

namespace shard::zip {

/// An error of kCorruption with that kind.
Error damaged(FindingKind kind, const std::string& message);

/// A number of a header as a size. \throws Error kCorruption (kind bad_header)  it exceeds 63 bits.
std::int64_t to_size(std::uint64_t number, std::string_view field);

/// Reads 64-bit numbers from a zip64 extra field. The field has one number for each 32-bit field that is at its
/// maximum, in the order of the fields.
class Zip64 {
 public:
  /// Ownership: a view of a header's extra fields.
  explicit Zip64(std::span<const std::byte> extra) : extra_(extra) {}
  /// \throws Error kCorruption (kind bad_header)  the number is missing.
  std::int64_t value(std::uint32_t field, std::string_view what);
  /// Does the same without an exception. Returns nothing if the number is missing or exceeds 63 bits. Consumes numbers
  /// as `value` does.
  std::optional<std::int64_t> find(std::uint32_t field);

 private:
  /// The next number of the field, or nothing.
  std::optional<std::uint64_t> take();

  std::span<const std::byte> extra_, rest_;
  bool found_ = false, leaves_header_ = false;
};

/// \throws Error kCorruption (kind bad_header)  a record of that name may be extracted outside its folder.
void check_name(std::string_view name);
/// \throws Error kUnsupported  encryption, unknown flags. `name` is for messages.
void check_flags(std::uint16_t flags, std::string_view name);
/// Whether check_name and check_flags accept a record, without the cost of an exception.
bool is_safe_name(std::string_view name);
bool are_known_flags(std::uint16_t flags);

/// Parses the directory entry at the front of `rest`, except Record::limit, and moves `rest` past it.
/// \throws Error kCorruption (kind bad_header)  it is truncated, its name may lead outside the folder, its sizes are
///   impossible, or it is on a different disk.
/// \throws Error kUnsupported  encryption, unknown flags.
Record take_entry(std::span<const std::byte>& rest);

}  // namespace shard::zip
