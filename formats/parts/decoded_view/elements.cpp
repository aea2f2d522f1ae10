#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "formats/parts/decoded_view/decoded_view.h"
#include "libshard/core/checked.h"
#include "libshard/core/error.h"

namespace shard::decoded_view {

namespace {

template <class Word, class Change>
void change_words(std::span<std::byte> bytes, const Change& change) {
  for (std::size_t i = 0; i + sizeof(Word) <= bytes.size(); i += sizeof(Word)) {
    Word word;
    std::memcpy(&word, bytes.data() + i, sizeof word);
    word = change(word);
    std::memcpy(bytes.data() + i, &word, sizeof word);
  }
}

void reverse_groups(std::span<std::byte> bytes, std::size_t group) {
  if (group == 2) change_words<std::uint16_t>(bytes, [](auto word) { return __builtin_bswap16(word); });
  if (group == 4) change_words<std::uint32_t>(bytes, [](auto word) { return __builtin_bswap32(word); });
  if (group == 8) change_words<std::uint64_t>(bytes, [](auto word) { return __builtin_bswap64(word); });
}

/// Flips the sign bit of every `step`-th part of `part_bytes`, starting with part number `first`.
void flip_signs(std::span<std::byte> bytes, std::size_t part_bytes, std::size_t first, std::size_t step) {
  for (std::size_t i = (first + 1) * part_bytes - 1; i < bytes.size(); i += step * part_bytes)
    bytes[i] ^= std::byte{0x80};
}

void negate_integers(std::span<std::byte> bytes, std::size_t element_bytes) {
  const auto negate = [](auto word) { return static_cast<decltype(word)>(0 - word); };
  if (element_bytes == 1) change_words<std::uint8_t>(bytes, negate);
  if (element_bytes == 2) change_words<std::uint16_t>(bytes, negate);
  if (element_bytes == 4) change_words<std::uint32_t>(bytes, negate);
  if (element_bytes == 8) change_words<std::uint64_t>(bytes, negate);
}

/// Whether the highest bit is a sign that torch can negate: true for floating-point formats with a sign.
bool has_sign_bit(DType dtype) {
  return dtype == DType::kFloat16 || dtype == DType::kBfloat16 || dtype == DType::kFloat32 ||
         dtype == DType::kFloat64 || is_complex(dtype);
}

class Elements final : public RandomReader {
 public:
  Elements(std::shared_ptr<const RandomReader> file, std::int64_t offset, std::int64_t bytes, const ElementCode& code)
      : file_(std::move(file)), offset_(offset), bytes_(bytes), code_(code) {
    name_ = file_->name();
    const bool has_flags = code.conj || code.neg;
    group_ = has_flags ? element_bytes(code.dtype) : code.swap_bytes;
  }
  std::int64_t size() const override { return bytes_; }
  std::unique_lock<std::mutex> turn() const override { return file_->turn(); }
  std::int64_t held_bytes() const override { return file_->held_bytes(); }

  void read_at(std::int64_t offset, std::span<std::byte> out) const override {
    check_within(offset, out.size(), bytes_, name_);
    const auto skipped = static_cast<std::size_t>(offset % group_);
    if (skipped > 0) {
      const std::size_t head = std::min(out.size(), static_cast<std::size_t>(group_) - skipped);
      read_part(offset, out.first(head));
      out = out.subspan(head);
      offset += static_cast<std::int64_t>(head);
    }
    const std::size_t whole = out.size() - out.size() % static_cast<std::size_t>(group_);
    if (whole > 0) read_whole(offset, out.first(whole));
    if (whole < out.size()) read_part(offset + static_cast<std::int64_t>(whole), out.subspan(whole));
  }

 private:
  void read_whole(std::int64_t offset, std::span<std::byte> out) const {
    file_->read_at(offset_ + offset, out);
    reverse_groups(out, static_cast<std::size_t>(code_.swap_bytes));
    const auto element_bytes = static_cast<std::size_t>(group_);
    if (is_complex(code_.dtype)) {
      if (code_.neg) flip_signs(out, element_bytes / 2, 0, 2);
      if (code_.neg != code_.conj) flip_signs(out, element_bytes / 2, 1, 2);
    } else if (code_.neg && is_integer(code_.dtype)) {
      negate_integers(out, element_bytes);
    } else if (code_.neg) {
      flip_signs(out, element_bytes, 0, 1);
    }
  }

  /// Reads bytes of one element. Bytes after the last whole element are copied without decoding.
  void read_part(std::int64_t offset, std::span<std::byte> out) const {
    const std::int64_t begin = offset - offset % group_;
    if (begin + group_ > bytes_) return file_->read_at(offset_ + offset, out);
    std::vector<std::byte> element(static_cast<std::size_t>(group_));
    const std::span<std::byte> all(element);
    read_whole(begin, all);
    std::copy_n(all.data() + (offset - begin), out.size(), out.data());
  }

  std::shared_ptr<const RandomReader> file_;
  std::int64_t offset_, bytes_;
  ElementCode code_;
  std::int64_t group_;  ///< The number of bytes that are decoded together.
};

}  // namespace

int swapped_bytes(DType dtype) {
  const int bytes = element_bytes(dtype);
  return std::max(1, is_complex(dtype) || dtype == DType::kBcomplex32 ? bytes / 2 : bytes);
}

std::shared_ptr<const RandomReader> as_elements(std::shared_ptr<const RandomReader> file, std::int64_t offset,
                                                std::int64_t bytes, const ElementCode& code) {
  const bool has_sign = has_sign_bit(code.dtype) || is_integer(code.dtype);
  if ((code.conj && !is_complex(code.dtype)) || (code.neg && !has_sign)) {
    throw Error(ErrorCode::kUnsupported, fmt::format("{} elements of dtype {} cannot be read",
                                                     code.conj ? "conjugated" : "negated", dtype_name(code.dtype)))
        .in_file(file->name());
  }
  return std::make_shared<Elements>(std::move(file), offset, bytes, code);
}

void check_within(std::int64_t offset, std::size_t count, std::int64_t bytes, const std::string& file) {
  if (offset >= 0 && checked_add(offset, static_cast<std::int64_t>(count)) <= bytes) return;
  throw Error(ErrorCode::kCorruption, fmt::format("{} bytes at {} extend past the end of the storage", count, offset))
      .in_file(file)
      .expected(bytes)
      .of_kind(FindingKind::kOutOfBounds);
}

}  // namespace shard::decoded_view
