#include <cassert>

#include "formats/parts/zip/bytes.h"
#include "formats/parts/zip/zip.h"
#include "libshard/core/checked.h"

namespace shard::zip {
namespace {

constexpr std::int64_t kAlignment = 64;
constexpr std::int64_t kPadHeaderBytes = 4;

// Bytes of the zip64 extra field (id 1): sizes and offset stand in it only where 32 bits cannot hold them.
std::int64_t zip64_bytes(std::int64_t bytes, std::int64_t header) {
  const bool wide_size = bytes >= kMax32, wide_offset = header >= kMax32;
  return wide_size || wide_offset ? 4 + (wide_size ? 16 : 0) + (wide_offset ? 8 : 0) : 0;
}

void store_zip64(std::string& out, std::int64_t bytes, std::int64_t compressed, std::int64_t header) {
  const std::int64_t all = zip64_bytes(bytes, header);
  if (all == 0) return;
  store(out, kZip64Extra);
  store(out, static_cast<std::uint16_t>(all - 4));
  if (bytes >= kMax32) {
    store(out, bytes);
    store(out, compressed);
  }
  if (header >= kMax32) store(out, header);
}

std::uint32_t narrow(std::int64_t number) { return number >= kMax32 ? kMax32 : static_cast<std::uint32_t>(number); }

std::uint16_t flags_of(std::int64_t bytes) {
  return static_cast<std::uint16_t>(kUtf8Flag | (bytes > 0 ? kDescriptorFlag : 0));
}

// Empty records have no descriptor. Those with a zip64 field have the wide one, also where only the offset is wide.
std::int64_t descriptor_bytes(std::int64_t bytes, std::int64_t header) {
  if (bytes == 0) return 0;
  return zip64_bytes(bytes, header) > 0 ? 24 : 16;
}

void store_descriptor(std::string& out, std::int64_t bytes, std::int64_t header, std::uint32_t crc) {
  const std::int64_t all = descriptor_bytes(bytes, header);
  if (all == 0) return;
  store(out, kDescriptorSignature);
  store(out, crc);
  for (int i = 0; i < 2; ++i) {
    if (all == 24) {
      store(out, bytes);
    } else {
      store(out, static_cast<std::uint32_t>(bytes));
    }
  }
}

void store_end(std::string& out, std::int64_t entries, std::int64_t directory, std::int64_t directory_bytes) {
  store(out, kZip64EndSignature);
  store(out, kZip64EndBytes - 12);
  store(out, std::uint16_t{0x031E});
  store(out, std::uint16_t{0x002D});
  store(out, std::uint64_t{0});  // Both disk numbers.
  store(out, entries);
  store(out, entries);
  store(out, directory_bytes);
  store(out, directory);
  store(out, kLocatorSignature);
  store(out, std::uint32_t{0});
  store(out, directory + directory_bytes);
  store(out, std::uint32_t{1});
  const std::uint16_t count = entries > 0xFFFF ? 0xFFFF : static_cast<std::uint16_t>(entries);
  store(out, kEndSignature);
  store(out, std::uint32_t{0});
  store(out, count);
  store(out, count);
  store(out, narrow(directory_bytes));
  store(out, narrow(directory));
  store(out, std::uint16_t{0});
}

}  // namespace

ZipLayout::ZipLayout(std::string folder) : folder_(std::move(folder) + '/') {}

std::int64_t ZipLayout::add(std::string_view name, std::int64_t bytes) {
  Entry entry;
  entry.name = name;
  entry.bytes = bytes;
  entry.header = end_;
  const auto name_bytes = static_cast<std::int64_t>(folder_.size() + name.size());
  const std::int64_t wide = zip64_bytes(bytes, entry.header);
  const std::int64_t start = checked_add(entry.header, kLocalBytes + name_bytes + wide + kPadHeaderBytes);
  entry.data = checked_add(start, (kAlignment - start % kAlignment) % kAlignment);
  end_ = checked_add(checked_add(entry.data, bytes), descriptor_bytes(bytes, entry.header));
  directory_bytes_ = checked_add(directory_bytes_, kDirectoryBytes + name_bytes + wide);
  entries_.push_back(std::move(entry));
  return entries_.back().data;
}

std::int64_t ZipLayout::total_bytes() const {
  return checked_add(checked_add(end_, directory_bytes_), kZip64EndBytes + kLocatorBytes + kEndBytes);
}

void ZipLayout::append_header(std::size_t record, std::string& out) const {
  const auto& [name, header, data, bytes] = entries_[record];
  const std::size_t name_bytes = folder_.size() + name.size();
  const std::int64_t extra = data - header - kLocalBytes - static_cast<std::int64_t>(name_bytes);
  const std::int64_t padding = extra - zip64_bytes(bytes, header) - kPadHeaderBytes;
  store(out, kLocalSignature);
  store(out, std::uint16_t{0});  // Version needed.
  store(out, flags_of(bytes));
  out.append(2 + 4 + 4 + 4 + 4, '\0');  // Method, time and date, CRC, both sizes: the descriptor has them.
  store(out, static_cast<std::uint16_t>(name_bytes));
  store(out, static_cast<std::uint16_t>(extra));
  out.append(folder_).append(name);
  store_zip64(out, bytes, 0, header);  // The compressed size is not known yet when torch writes this.
  out += "FB";
  store(out, static_cast<std::uint16_t>(padding));
  out.append(static_cast<std::size_t>(padding), 'Z');
}

void ZipLayout::append_descriptor(std::size_t record, std::uint32_t crc, std::string& out) const {
  store_descriptor(out, entries_[record].bytes, entries_[record].header, crc);
}

void ZipLayout::append_entry(std::size_t record, std::uint32_t crc, std::string& out) const {
  const auto& [name, header, data, bytes] = entries_[record];
  store(out, kDirectorySignature);
  store(out, std::uint32_t{0});  // Version made by, version needed.
  store(out, flags_of(bytes));
  out.append(2 + 4, '\0');  // Method, time and date.
  store(out, crc);
  store(out, narrow(bytes));
  store(out, narrow(bytes));
  store(out, static_cast<std::uint16_t>(folder_.size() + name.size()));
  store(out, static_cast<std::uint16_t>(zip64_bytes(bytes, header)));
  out.append(2 + 2 + 2 + 4, '\0');  // Comment, disk, attributes.
  store(out, narrow(header));
  out.append(folder_).append(name);
  store_zip64(out, bytes, bytes, header);
}

void ZipLayout::append_end(std::string& out) const {
  store_end(out, static_cast<std::int64_t>(entries_.size()), end_, directory_bytes_);
}

std::vector<ZipLayout::Span> ZipLayout::frame(const std::vector<std::uint32_t>& crcs) const {
  assert(crcs.size() == entries_.size());
  std::vector<Span> spans;
  spans.reserve(entries_.size() + 1);
  Span span{0, {}};
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    append_header(i, span.content);
    spans.push_back(std::move(span));
    span = {entries_[i].data + entries_[i].bytes, {}};
    append_descriptor(i, crcs[i], span.content);
  }
  for (std::size_t i = 0; i < entries_.size(); ++i) append_entry(i, crcs[i], span.content);
  append_end(span.content);
  spans.push_back(std::move(span));
  return spans;
}

}  // namespace shard::zip
