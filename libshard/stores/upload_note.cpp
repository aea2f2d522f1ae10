#include "libshard/stores/upload_note.h"

#include <fmt/format.h>

#include <array>

#include "libshard/core/parse_number.h"

namespace shard {

namespace {

constexpr std::string_view kHead = "shardctl.uploads/1\n", kEnd = "end\n";

/// Removes the next line and returns it. Returns nothing if the line is incomplete.
std::optional<std::string_view> take_line(std::string_view& text) {
  const std::size_t end = text.find('\n');
  if (end == std::string_view::npos) return std::nullopt;
  const std::string_view line = text.substr(0, end);
  text.remove_prefix(end + 1);
  return line;
}

std::optional<std::string> take_field(std::string_view& text, std::string_view name) {
  const auto line = take_line(text);
  if (!line || !line->starts_with(name)) return std::nullopt;
  return std::string(line->substr(name.size()));
}

/// "BYTES PART_BYTES HAS_CHECKSUMS LENGTH UPLOAD PATH", in which LENGTH is that of UPLOAD.
std::optional<UploadNote::File> parse_file(std::string_view line) {
  std::array<std::int64_t, 4> numbers{};
  for (std::int64_t& number : numbers) {
    const auto taken = take_natural(line);
    if (!taken || !line.starts_with(' ')) return std::nullopt;
    line.remove_prefix(1);
    number = *taken;
  }
  const auto length = static_cast<std::size_t>(numbers[3]);
  if (numbers[3] >= std::ssize(line) || line[length] != ' ' || numbers[1] <= 0) return std::nullopt;
  return UploadNote::File{std::string(line.substr(length + 1)), numbers[0], numbers[1], numbers[2] != 0,
                          std::string(line.substr(0, length))};
}

}  // namespace

std::string UploadNote::text() const {
  std::string text = fmt::format("{}run {}\nholder {}\n", kHead, run, holder);
  for (const File& file : files) {
    text += fmt::format("{} {} {:d} {} {} {}\n", file.bytes, file.part_bytes, file.has_checksums, file.upload.size(),
                        file.upload, file.path);
  }
  return text.append(kEnd);
}

std::optional<UploadNote> parse_upload_note(std::string_view text) {
  if (!text.starts_with(kHead)) return std::nullopt;
  text.remove_prefix(kHead.size());
  UploadNote note;
  const auto run = take_field(text, "run "), holder = run ? take_field(text, "holder ") : std::nullopt;
  if (!holder || run->empty()) return std::nullopt;
  note.run = *run;
  note.holder = *holder;
  while (text != kEnd) {
    const auto line = take_line(text);
    auto file = line ? parse_file(*line) : std::nullopt;
    if (!file) return std::nullopt;
    note.files.push_back(std::move(*file));
  }
  return note;
}

std::string note_url(const std::string& destination) { return destination + ".shardctl"; }

}  // namespace shard
