#include <fmt/format.h>

#include <array>
#include <cassert>
#include <charconv>

#include "formats/torch/tensor_pickle.h"
#include "formats/parts/zip/zip.h"
#include "libshard/core/digest.h"

namespace shard::torch_save {
namespace {

struct SmallRecord {
  std::string_view name, content;
};
constexpr std::array<SmallRecord, 3> kBeforeStorages{{
    {".format_version", "1"},  // Storages stand in the order of their keys as numbers.
    {".storage_alignment", "64"},
    {"byteorder", "little"},
}};
constexpr SmallRecord kVersion{"version", "3\n"};
constexpr std::string_view kIdName = ".data/serialization_id";
constexpr std::int64_t kIdDigits = 40;

std::uint32_t crc_of(std::string_view text) { return crc32(std::as_bytes(std::span(text))); }

// Forty digits that tell saves apart. torch derives them from its own hash of names and CRCs, which differs between
// platforms; ours come from XXH3 of the same, so that equal content has an equal id.
std::string serialization_id(std::span<const std::uint32_t> crcs) {
  Hasher hasher(HashAlgorithm::kXxh3_128);
  hasher.update(std::as_bytes(crcs));
  const std::string hex = hasher.finish_hex();
  std::string digits;
  for (std::size_t half : {std::size_t{0}, std::size_t{16}}) {
    std::uint64_t number = 0;
    std::from_chars(hex.data() + half, hex.data() + half + 16, number, 16);
    digits += fmt::format("{:020}", number);
  }
  return digits;
}

}  // namespace

struct SavedZip::Impl {
  zip::ZipLayout layout;
  std::string data_pkl;
  std::vector<std::int64_t> bytes, data;  // Of the storages: size, and offset from the zip's first byte.

  explicit Impl(std::string folder) : layout(std::move(folder)) {}
};

SavedZip::SavedZip(std::string folder, std::string data_pkl, std::span<const std::int64_t> storage_bytes)
    : impl_(std::make_unique<Impl>(std::move(folder))) {
  impl_->data_pkl = std::move(data_pkl);
  impl_->bytes.assign(storage_bytes.begin(), storage_bytes.end());
  impl_->data.reserve(storage_bytes.size());
  zip::ZipLayout& layout = impl_->layout;
  layout.add("data.pkl", static_cast<std::int64_t>(impl_->data_pkl.size()));
  for (const SmallRecord& record : kBeforeStorages) {
    layout.add(record.name, static_cast<std::int64_t>(record.content.size()));
  }
  for (std::size_t i = 0; i < storage_bytes.size(); ++i) {
    impl_->data.push_back(layout.add(fmt::format("data/{}", i), storage_bytes[i]));
  }
  layout.add(kVersion.name, static_cast<std::int64_t>(kVersion.content.size()));
  layout.add(kIdName, kIdDigits);
}

SavedZip::~SavedZip() = default;

std::int64_t SavedZip::total_bytes() const { return impl_->layout.total_bytes(); }

std::int64_t SavedZip::data_offset(std::size_t storage) const { return impl_->data[storage]; }

std::vector<SavedZip::Span> SavedZip::frame(std::span<const std::uint32_t> storage_crcs) const {
  assert(storage_crcs.size() == impl_->bytes.size());
  std::vector<std::uint32_t> crcs{crc_of(impl_->data_pkl)};
  std::vector<std::string_view> contents{impl_->data_pkl};  // Of records around the storages; those have none here.
  for (const SmallRecord& record : kBeforeStorages) {
    crcs.push_back(crc_of(record.content));
    contents.push_back(record.content);
  }
  const std::size_t first_storage = crcs.size();
  crcs.insert(crcs.end(), storage_crcs.begin(), storage_crcs.end());
  contents.resize(crcs.size());
  crcs.push_back(crc_of(kVersion.content));
  contents.push_back(kVersion.content);
  const std::string id = serialization_id(crcs);
  crcs.push_back(crc_of(id));
  contents.push_back(id);

  std::vector<zip::ZipLayout::Span> around = impl_->layout.frame(crcs);
  std::vector<Span> spans;
  Span span{around[0].offset, std::move(around[0].content)};
  for (std::size_t i = 0; i < contents.size(); ++i) {
    const bool is_storage = i >= first_storage && i < first_storage + storage_crcs.size();
    if (is_storage && impl_->bytes[i - first_storage] > 0) {
      spans.push_back(std::move(span));
      span = {around[i + 1].offset, std::move(around[i + 1].content)};
    } else {
      span.content += contents[i];
      span.content += around[i + 1].content;
    }
  }
  spans.push_back(std::move(span));
  return spans;
}

}  // namespace shard::torch_save
