/// \file
/// The zip container of torch.save: a zip64 reader over any byte range of a file, and a placing writer.
///
/// Read: the end record at the very end (no comment), zip64 end record and locator, central directory, and on demand
/// each local header, which must agree with the directory. Refused: encryption, several disks, duplicate names,
/// overlapping records, records outside the range, names that are absolute or hold "..", "\\" or NUL.
/// Written: as torch 2.11 writes (stored records, data at multiples of 64 from the zip's start through an "FB" extra
/// field, data descriptors, zip64 tail always). Source: APPNOTE.TXT 6.3.10 and torch's caffe2/serialize.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "libshard/io/file_system.h"

namespace shard::zip {

struct Record {
  std::string name;               ///< With the top folder.
  std::int64_t header_offset = 0; ///< Of the local header, from the zip's first byte.
  std::int64_t bytes = 0;         ///< Uncompressed.
  std::int64_t stored_bytes = 0;
  std::uint32_t crc32 = 0;
  std::uint16_t method = 0;       ///< 0 stored, 8 deflated.
};

/// An open zip at [begin, begin + bytes) of a file. Ownership: keeps a reference to the file.
class ZipReader {
 public:
  /// \throws Error kCorruption (kind truncated, bad_header), kUnsupported (several disks, encryption).
  ZipReader(std::shared_ptr<const RandomReader> file, std::int64_t begin, std::int64_t bytes);
  const std::vector<Record>& records() const { return records_; }
  /// The record `top folder/name`, or null. torch's reader takes the folder from the first entry.
  const Record* find(std::string_view name) const;
  const std::string& folder() const { return folder_; }
  /// Offset in the FILE of the record's first data byte; reads and checks the local header.
  std::int64_t data_offset(const Record& record) const;
  /// The record's content, checked against its CRC-32. \throws Error kCorruption  larger than `limit_bytes`, bad CRC.
  std::vector<std::byte> read(const Record& record, std::int64_t limit_bytes) const;

 private:
  std::shared_ptr<const RandomReader> file_;
  std::int64_t begin_ = 0, bytes_ = 0, directory_ = 0;
  std::string folder_;
  std::vector<Record> records_;
};

/// Lays out a zip: add records in order, then everything but stored data is known except the CRCs.
class ZipLayout {
 public:
  /// `folder` is the top folder's name ("archive").
  explicit ZipLayout(std::string folder);
  /// Adds a record; returns the offset of its data from the zip's first byte, a multiple of 64.
  std::int64_t add(std::string_view name, std::int64_t bytes);
  /// Bytes of the whole zip.
  std::int64_t total_bytes() const;
  /// All bytes around record `i`'s data as pieces (offset from the zip's first byte, content), given all CRCs: local
  /// headers, data descriptors, central directory and end records.
  struct Span {
    std::int64_t offset;
    std::string content;
  };
  std::vector<Span> frame(const std::vector<std::uint32_t>& crcs) const;

 private:
  struct Entry {
    std::string name;
    std::int64_t header = 0, data = 0, bytes = 0;
  };
  std::string folder_;
  std::vector<Entry> entries_;
  std::int64_t end_ = 0;
};

}  // namespace shard::zip
