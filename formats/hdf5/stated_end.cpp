#include "formats/hdf5/stated_end.h"

#include <fmt/format.h>

#include <array>
#include <cstring>
#include <string_view>

#include "libshard/core/error.h"

namespace shard::hdf5 {
namespace {

using std::string_view_literals::operator""sv;

constexpr std::string_view kSignature = "\x89HDF\r\n\x1a\n"sv;
constexpr std::size_t kVersionAt = 8, kLongest = 64;

/// Where things stand in a superblock.
struct Fields {
  std::size_t offset_size, base, end;
};
constexpr std::array kFields{
    Fields{13, 24, 40},
    Fields{13, 28, 44},
    Fields{9, 12, 28},
    Fields{9, 12, 28},
};

}  // namespace

std::optional<std::int64_t> stated_end(const RandomReader& file) {
  std::array<std::byte, kLongest> head{};
  if (file.size() < std::ssize(head)) return std::nullopt;
  file.read_at(0, head);
  const auto version = static_cast<std::size_t>(head[kVersionAt]);
  const bool is_known = std::memcmp(head.data(), kSignature.data(), kSignature.size()) == 0 && version < kFields.size();
  if (!is_known || head[kFields[version].offset_size] != std::byte{8}) return std::nullopt;
  const auto number_at = [&](std::size_t at) {
    std::int64_t number = 0;
    std::memcpy(&number, head.data() + at, sizeof number);
    return number;
  };
  const std::int64_t end = number_at(kFields[version].end);
  return number_at(kFields[version].base) == 0 && end >= 0 ? std::optional(end) : std::nullopt;
}

void warn_of_bytes_behind(const RandomReader& file, const std::string& shown, Findings& findings) {
  const std::optional<std::int64_t> end = stated_end(file);
  if (!end || file.size() <= *end) return;
  findings.warn(Error(ErrorCode::kCorruption,
                      fmt::format("{} bytes follow the end of the file that its superblock states", file.size() - *end))
                    .in_file(shown)
                    .of_kind(FindingKind::kGap)
                    .expected(*end)
                    .found(file.size())
                    .because("something was appended to it"));
}

}  // namespace shard::hdf5
