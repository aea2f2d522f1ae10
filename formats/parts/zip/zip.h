/// \file
/// The zip container of torch.save: a zip64 reader over any byte range of a file, and a writer that places records.
///
/// Read: the end record at the very end (a comment may follow it), the zip64 end record and locator, the central
/// directory, and on demand each local header, which must agree with the directory. Refused: encryption, several disks,
/// counts that contradict one another, duplicate names, overlapping records, records outside the range, bytes before
/// the first record or between records, names that are absolute or contain "..", "\\" or NUL. Written as torch 2.11
/// does: stored records, data at multiples of 64 from the zip's start through an "FB" extra field, data descriptors,
/// always with the zip64 end record and locator. Source: APPNOTE.TXT 6.3.10 and torch's caffe2/serialize.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "libshard/io/source_store.h"

namespace shard::zip {

/// Record::method of deflated records.
inline constexpr std::uint16_t kDeflated = 8;

struct Record {
  std::string name;                ///< Includes the top folder.
  std::int64_t header_offset = 0;  ///< The offset of the local header from the zip's first byte.
  /// The offset of the next local header or the directory. All bytes of the record are before it.
  std::int64_t limit = 0;
  std::int64_t bytes = 0;  ///< Uncompressed.
  std::int64_t stored_bytes = 0;
  std::uint32_t crc32 = 0;
  std::uint16_t method = 0;  ///< 0 for stored, 8 for deflated.
  std::uint16_t flags = 0;
  /// Offset in the FILE; -1 if only the local header determines it. Set for salvaged records.
  std::int64_t data_offset = -1;

  /// The content's CRC-32; empty if the writer omitted it. torch writes 0 if it was asked not to compute CRCs, or if a
  /// different writer adds the data later (skip_data).
  std::optional<std::uint32_t> checksum() const {
    return crc32 != 0 || bytes == 0 ? std::optional(crc32) : std::nullopt;
  }
};

/// An open zip at [begin, begin + bytes) of a file. Ownership: keeps a reference to the file.
/// Threads: const members may be called by several threads at once.
/// Cost: one read if the zip has at most 8 KiB. Otherwise two reads (its end, its front) and one more for each MiB of a
/// directory past 4 KiB; also n log n in records.
class ZipReader {
 public:
  /// \throws Error kCorruption (kind truncated, bad_header, duplicate_name, overlap, out_of_bounds), kUnsupported
  ///   (several disks, encryption, unknown flags).
  ZipReader(std::shared_ptr<const RandomReader> file, std::int64_t begin, std::int64_t bytes);
  /// Opens a zip of records that were salvaged (salvage.h), at [begin, begin + bytes). Offsets are not checked.
  /// \throws Error kCorruption (kind duplicate_name)
  ZipReader(std::shared_ptr<const RandomReader> file, std::int64_t begin, std::int64_t bytes,
            std::vector<Record> records);
  /// In the directory's order.
  const std::vector<Record>& records() const { return records_; }
  /// The record `top folder/name`, or null. torch's reader takes the folder from the first entry.
  const Record* find(std::string_view name) const;
  const std::string& folder() const { return folder_; }             ///< Empty if the first entry is not in a folder.
  std::int64_t directory_offset() const { return end_.directory; }  ///< From the zip's first byte.
  std::int64_t directory_bytes() const { return end_.directory_bytes; }
  bool has_checksums() const { return has_checksums_; }  ///< Whether any record has a CRC-32 other than 0.
  /// Offset in the FILE of the record's first data byte; reads and checks the local header.
  std::int64_t data_offset(const Record& record) const;
  /// Does the same for records by their numbers. A disk with long round trips is asked for many headers at one time.
  std::vector<std::int64_t> data_offsets(std::span<const std::uint32_t> records) const;
  /// The record's content, checked against its CRC-32 if it has one.
  /// \throws Error kCorruption  larger than `limit_bytes`, wrong CRC (kind crc_mismatch); kUnsupported  unknown method.
  std::vector<std::byte> read(const Record& record, std::int64_t limit_bytes) const;
  /// The record's content at any size, charged to the arena's budget. \throws Error kCorruption  the budget is
  /// exhausted.
  std::vector<std::byte> read(const Record& record, Arena& arena) const;
  /// The allocated bytes among the record's stored bytes, see RandomReader::allocated_bytes.
  std::int64_t allocated_bytes(const Record& record) const;

 private:
  struct Window {
    std::int64_t begin = 0;
    std::vector<std::byte> bytes;
  };
  struct End {
    std::int64_t entries = 0, directory = 0, directory_bytes = 0;
  };
  struct NameKey {
    std::uint64_t hash;
    std::uint32_t record;
  };
  std::span<const std::byte> view(std::int64_t offset, std::int64_t count, std::vector<std::byte>& scratch) const;
  std::int64_t find_end() const;
  End read_end() const;
  [[noreturn]] void throw_disks(std::string_view where) const;
  End read_zip64_end(std::int64_t locator, const End& classic) const;
  void read_directory(const End& end);
  void take_folder();
  void check_places(std::int64_t directory);
  void index_names();
  std::int64_t local_bytes(const Record& record) const;
  std::int64_t checked_offset(const Record& record, std::span<const std::byte> header) const;
  void check_gap(const Record& record, std::int64_t gap, bool has_extra) const;

  std::shared_ptr<const RandomReader> file_;
  std::int64_t begin_ = 0, bytes_ = 0;
  bool has_checksums_ = false;  ///< False if all CRCs are 0.
  End end_;
  Window head_, tail_;
  std::string folder_;
  std::vector<Record> records_;
  std::vector<NameKey> by_name_;  ///< By hash, then name. Sorted, so that no choice of names makes a look-up slow.
};

/// Lays out a zip. After all records are added in order, all bytes are known except the stored data and the CRCs.
/// Threads: const members may be called by several threads at once.
class ZipLayout {
 public:
  /// `folder` is the top folder's name ("archive").
  explicit ZipLayout(std::string folder);
  /// Adds a record. \returns the offset of its data from the zip's first byte, a multiple of 64.
  /// \throws Error kCorruption  the zip would exceed 63 bits.
  std::int64_t add(std::string_view name, std::int64_t bytes);
  std::size_t size() const { return entries_.size(); }
  std::int64_t header_offset(std::size_t record) const { return entries_[record].header; }
  std::int64_t data_offset(std::size_t record) const { return entries_[record].data; }
  std::int64_t data_bytes(std::size_t record) const { return entries_[record].bytes; }
  /// Bytes of the whole zip.
  std::int64_t total_bytes() const;

  /// Appends the bytes between the previous record and this record's data.
  void append_header(std::size_t record, std::string& out) const;
  /// Appends the bytes between the record's data and the next record's header.
  void append_descriptor(std::size_t record, std::uint32_t crc, std::string& out) const;
  /// Appends the record's entry in the directory, which starts at the end of the last record.
  void append_entry(std::size_t record, std::uint32_t crc, std::string& out) const;
  /// Appends the bytes after the directory's entries.
  void append_end(std::string& out) const;

  /// All bytes around the records' data, given all CRCs, as spans (offset from the zip's first byte, content). Span i
  /// ends at the data of record i; the last span starts after the last record's data and ends at the zip's end.
  struct Span {
    std::int64_t offset;
    std::string content;
  };
  std::vector<Span> frame(const std::vector<std::uint32_t>& crcs) const;

 private:
  struct Entry {
    std::string name;  ///< Without the folder, because short names need no allocation.
    std::int64_t header = 0, data = 0, bytes = 0;
  };
  std::string folder_;  ///< Includes its slash.
  std::vector<Entry> entries_;
  std::int64_t end_ = 0, directory_bytes_ = 0;
};

}  // namespace shard::zip
