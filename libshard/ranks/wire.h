/// \file
/// Numbers, texts and errors as bytes between ranks. The first messages verify that both ends are the same build
/// (together.h); decoding is checked anyway.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "libshard/core/bytes.h"
#include "libshard/core/error.h"
#include "libshard/ranks/group.h"

namespace shard {

/// Appends values to a message. A WireReader must read the same types in the same order.
class WireWriter {
 public:
  void number(std::int64_t value);
  void real(double value);
  void text(std::string_view value);
  void error(const Error& value);
  Bytes take() { return std::move(bytes_); }

 private:
  Bytes bytes_;
};

/// Ownership: the bytes must outlive it; the values that it returns are copies.
class WireReader {
 public:
  explicit WireReader(std::span<const std::byte> bytes) : rest_(bytes) {}
  /// \throws Error kPeer  here and below: the bytes are truncated or contain an impossible value.
  std::int64_t number();
  std::int64_t number_below(std::int64_t end);  ///< In [0, end).
  double real();
  std::string text();
  Error error();
  bool at_end() const { return rest_.empty(); }

 private:
  std::span<const std::byte> take(std::uint64_t count);
  std::span<const std::byte> rest_;
};

}  // namespace shard
