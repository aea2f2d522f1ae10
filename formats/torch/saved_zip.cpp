#include "formats/torch/saved_zip.h"

#include <fmt/format.h>

#include <array>
#include <cassert>
#include <charconv>

#include "libshard/core/digest.h"

namespace shard::torch_save {
namespace {

std::uint32_t crc_of(std::string_view text) { return crc32(std::as_bytes(std::span(text))); }

struct SmallRecord {
  std::string_view name, content;
  std::uint32_t crc() const { return crc_of(content); }
};
constexpr std::array<SmallRecord, 3> kBeforeStorages{{
    {".format_version", "1"},  // Storages are in the numeric order of their keys.
    {".storage_alignment", "64"},
    {"byteorder", "little"},
}};
constexpr SmallRecord kVersion{"version", "3\n"};
constexpr std::string_view kIdName = ".data/serialization_id";
constexpr std::int64_t kIdDigits = 40;

// Forty digits that distinguish saves. torch derives them from its own hash of names and CRCs, which differs between
// platforms. This function uses XXH3 of the same data, so that equal content has an equal id.
std::string serialization_id(Hasher& crcs) {
  const std::string hex = crcs.finish_hex();
  std::string digits;
  for (std::size_t half : {std::size_t{0}, std::size_t{16}}) {
    std::uint64_t number = 0;
    std::from_chars(hex.data() + half, hex.data() + half + 16, number, 16);
    digits += fmt::format("{:020}", number);
  }
  return digits;
}

}  // namespace

SavedZip::SavedZip(std::string folder, std::int64_t pickle_bytes, std::span<const std::int64_t> storage_bytes,
                   std::string note)
    : layout_(std::move(folder)), storages_(storage_bytes.size()), note_(std::move(note)) {
  layout_.add("data.pkl", pickle_bytes);
  for (const SmallRecord& record : kBeforeStorages) layout_.add(record.name, std::ssize(record.content));
  assert(layout_.size() == kFirstStorage);
  for (std::size_t i = 0; i < storages_; ++i) layout_.add(fmt::format("data/{}", i), storage_bytes[i]);
  layout_.add(kVersion.name, std::ssize(kVersion.content));
  if (!note_.empty()) layout_.add(kLostRecord, std::ssize(note_));
  layout_.add(kIdName, kIdDigits);
}

void SavedZip::append_after_pickle(std::uint32_t pickle_crc, std::string& out) const {
  layout_.append_descriptor(0, pickle_crc, out);
  for (std::size_t i = 0; i < kBeforeStorages.size(); ++i) {
    layout_.append_header(1 + i, out);
    out += kBeforeStorages[i].content;
    layout_.append_descriptor(1 + i, kBeforeStorages[i].crc(), out);
  }
}

void SavedZip::write_end(std::uint32_t pickle_crc, const std::function<std::uint32_t(std::size_t)>& crc_of_storage,
                         const std::function<void(std::string_view)>& sink) const {
  constexpr std::size_t kPiece = 1 << 16;
  const std::size_t version = kFirstStorage + storages_;
  std::vector<std::string> ending{std::string(kVersion.content)};  // The content of the records from `version` on.
  if (!note_.empty()) ending.push_back(note_);
  const auto crc_of_record = [&](std::size_t record) {
    if (record == 0) return pickle_crc;
    if (record < kFirstStorage) return kBeforeStorages[record - 1].crc();
    if (record < version) return crc_of_storage(record - kFirstStorage);
    return crc_of(ending[record - version]);
  };
  Hasher crcs(HashAlgorithm::kXxh3_128);
  for (std::size_t record = 0; record < version + ending.size(); ++record) {
    const std::uint32_t crc = crc_of_record(record);
    crcs.update(std::as_bytes(std::span(&crc, 1)));
  }
  ending.push_back(serialization_id(crcs));

  std::string piece;
  for (std::size_t i = 0; i < ending.size(); ++i) {
    layout_.append_header(version + i, piece);
    piece += ending[i];
    layout_.append_descriptor(version + i, crc_of(ending[i]), piece);
  }
  for (std::size_t record = 0; record < layout_.size(); ++record) {
    layout_.append_entry(record, crc_of_record(record), piece);
    if (piece.size() < kPiece) continue;
    sink(piece);
    piece.clear();
  }
  layout_.append_end(piece);
  sink(piece);
}

std::vector<SavedZip::Span> SavedZip::frame(std::string_view data_pkl,
                                            std::span<const std::uint32_t> storage_crcs) const {
  assert(storage_crcs.size() == storages_);
  const std::uint32_t pickle_crc = crc_of(data_pkl);
  std::vector<Span> spans(1);
  append_begin(spans[0].content);
  spans[0].content += data_pkl;
  append_after_pickle(pickle_crc, spans[0].content);
  for (std::size_t i = 0; i < storages_; ++i) {
    append_before(i, spans.back().content);
    const std::int64_t bytes = layout_.data_bytes(kFirstStorage + i);
    if (bytes > 0) spans.push_back({data_offset(i) + bytes, {}});
    append_after(i, storage_crcs[i], spans.back().content);
  }
  write_end(
      pickle_crc, [&](std::size_t i) { return storage_crcs[i]; },
      [&](std::string_view piece) { spans.back().content += piece; });
  return spans;
}

}  // namespace shard::torch_save
