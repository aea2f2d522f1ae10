/// \file File names with numbers in them: patterns with fields, and sets of names that differ only in numbers. Pure.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace shard {

/// A pattern such as "shard-{rank:05d}-model-{file:05d}-of-{count:05d}.safetensors".
///
/// A field in braces represents a number from 0 to INT64_MAX. ":05d", as in Python, writes at least five digits. A
/// field reads any number of digits, including leading zeros.
class NamePattern {
 public:
  /// Text, and the field after it. Only the last part has no field.
  struct Part {
    std::string text, field;
    std::size_t digits = 0;  ///< The least number of digits in writing; shorter numbers receive leading zeros.

    /// `value` as it appears in a name.
    std::string padded(std::string value) const;
  };

  /// Nothing if the text has braces that are not fields.
  static std::optional<NamePattern> parse(std::string_view text);
  /// \pre the braces in `text` are fields
  explicit NamePattern(std::string_view text) : NamePattern(*parse(text)) {}

  const std::vector<Part>& parts() const { return parts_; }

  /// Reads the fields' numbers, in order. \returns false if the name has a different form. \pre one element of
  /// `numbers` per field
  bool read(std::string_view name, std::span<std::int64_t> numbers) const;
  template <std::size_t kFields>
  std::optional<std::array<std::int64_t, kFields>> read(std::string_view name) const {
    std::array<std::int64_t, kFields> numbers{};
    return read(name, numbers) ? std::optional(numbers) : std::nullopt;
  }
  bool fits(std::string_view name) const;
  /// The name with these numbers. \pre one number per field
  std::string write(std::span<const std::int64_t> numbers) const;

 private:
  NamePattern() = default;
  std::vector<Part> parts_;
};

/// The name of one of several parts that counts them: "model-00001-of-00003.safetensors". Ownership: views of the name.
struct CountedName {
  std::string_view base;           ///< "model-", with the dash before the number.
  std::string_view number, count;  ///< "00001" and "00003": 1 to 9 digits.
  std::string_view end;            ///< ".safetensors": from the first dot after the count to the end.
};
/// Nothing for a name of a different form. If several "-of-" occur, the last one counts.
std::optional<CountedName> read_counted_name(std::string_view name);

/// Splits a name before and after each run of digits: texts at even indices, digits at odd ones. The first may be
/// empty.
std::vector<std::string> cut_at_numbers(std::string_view name);

/// The name with '#' in place of each run of digits. Equal for the names of one set.
std::string without_numbers(std::string_view name);

/// A shell's pattern for a set of names: '*' for each number that differs. \pre all have the same texts around the
/// numbers
std::string shell_pattern(std::span<const std::string> names);

}  // namespace shard
