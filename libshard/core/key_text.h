/// \file KeyText: a text built from numbers and texts, as the key of a table. Texts are equal if and only if the
///   sequences are.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace shard {

class KeyText {
 public:
  /// \pre keys that are compared have equal numbers of single numbers at the same positions
  template <class... Number>
  KeyText& numbers(Number... number) {
    (append(static_cast<std::int64_t>(number)), ...);
    return *this;
  }
  /// A sequence of any length.
  KeyText& list(std::span<const std::int64_t> values) {
    append(static_cast<std::int64_t>(values.size()));
    for (const std::int64_t value : values) append(value);
    return *this;
  }
  KeyText& text(std::string_view value) {
    append(static_cast<std::int64_t>(value.size()));
    text_ += value;
    return *this;
  }
  const std::string& str() const { return text_; }

 private:
  void append(std::int64_t number) { text_.append(reinterpret_cast<const char*>(&number), sizeof number); }

  std::string text_;
};

}  // namespace shard
