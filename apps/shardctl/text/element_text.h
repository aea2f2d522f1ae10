/// \file
/// Elements as text: the shortest text that reads back as the same value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "libshard/core/dtype.h"

namespace shard::app {

/// The style of the text: as Python prints elements ("1.0", "nan", "1.0+2.0j", "True"), or as JSON (NaN and infinities
/// as strings, a complex number as an array of two).
enum class Spelling : std::uint8_t { kPython, kJson };

/// Threads: one per object.
class ElementText {
 public:
  /// False if an element is not a separate number: float4, float6, bits, quantized.
  static bool can_show(DType dtype);
  /// \pre can_show(dtype)
  ElementText(DType dtype, Spelling spelling);
  /// Sets the elements that `operator[]` returns from now on. Widens narrow types once, here.
  /// Ownership: borrows `elements` until the next call.
  void take(std::span<const std::byte> elements);
  std::int64_t size() const { return size_; }
  /// The text of an element, valid until the next call.
  std::string_view operator[](std::int64_t index);

 private:
  DType dtype_, shown_;
  Spelling spelling_;
  std::size_t bytes_;  ///< The size of an element in `shown_`.
  std::int64_t size_ = 0;
  std::span<const std::byte> elements_;
  std::vector<std::byte> widened_;
  char text_[128];
};

}  // namespace shard::app
