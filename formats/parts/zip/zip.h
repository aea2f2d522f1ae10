/// \file
/// The zip container of torch.save: a zip64 reader over any byte range of a file, and a placing writer.
///
/// Read: the end record at the very end (a comment may follow it), zip64 end record and locator, central directory, and
/// on demand each local header, which must agree with the directory. Refused: encryption, several disks, counts
/// that contradict one another, duplicate names, overlapping records, records outside the range, bytes before the first
/// record or between records, names that are absolute or hold "..", "\\" or NUL. Written: as torch 2.11 writes (stored
/// records, data at multiples of 64 from the zip's start through an "FB" extra field, data descriptors, zip64 tail
/// always). Source: APPNOTE.TXT 6.3.10 and torch's caffe2/serialize.
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

struct Record {
  std::string name;                ///< With the top folder.
  std::int64_t header_offset = 0;  ///< Where the local header begins, from the zip's first byte.
  std::int64_t limit = 0;          ///< Where the next local header or the directory begins: no byte reaches past it.
  std::int64_t bytes = 0;          ///< Uncompressed.
  std::int64_t stored_bytes = 0;
  std::uint32_t crc32 = 0;
  std::uint16_t method = 0;  ///< 0 stored, 8 deflated.
  std::uint16_t flags = 0;
  std::int64_t data_offset = -1;  ///< In the FILE; -1: the local header says it. Set for records that were salvaged.

  /// The content's CRC-32; nothing where the writer left it out. torch writes 0 when it is told to compute none, and
  /// where somebody else will write the data (skip_data).
  std::optional<std::uint32_t> checksum() const {
    return crc32 != 0 || bytes == 0 ? std::optional(crc32) : std::nullopt;
  }
};

/// An open zip at [begin, begin + bytes) of a file. Ownership: keeps a reference to the file.
/// Threads: const members may be called by several at once.
/// Cost: one read where the zip has at most 8 KiB, else two (its end, its front) and one more for each MiB of a
/// directory past 4 KiB; n log n in records on top.
class ZipReader {
 public:
  /// \throws Error kCorruption (kind truncated, bad_header, duplicate_name, overlap, out_of_bounds), kUnsupported
  ///   (several disks, encryption, unknown flags).
  ZipReader(std::shared_ptr<const RandomReader> file, std::int64_t begin, std::int64_t bytes);
  /// Of records that were salvaged (salvage.h), at [begin, begin + bytes); their places are not checked any more.
  /// \throws Error kCorruption (kind duplicate_name)
  ZipReader(std::shared_ptr<const RandomReader> file, std::int64_t begin, std::int64_t bytes,
            std::vector<Record> records);
  /// In the directory's order.
  const std::vector<Record>& records() const { return records_; }
  /// The record `top folder/name`, or null. torch's reader takes the folder from the first entry.
  const Record* find(std::string_view name) const;
  const std::string& folder() const { return folder_; }             ///< Empty where the first entry lies in none.
  std::int64_t directory_offset() const { return end_.directory; }  ///< From the zip's first byte.
  std::int64_t directory_bytes() const { return end_.directory_bytes; }
  bool has_checksums() const { return has_checksums_; }  ///< Whether any record has a CRC-32 other than 0.
  /// Offset in the FILE of the record's first data byte; reads and checks the local header.
  std::int64_t data_offset(const Record& record) const;
  /// The record's content, checked against its CRC-32. torch can be told to store 0 for every CRC: where all records
  /// have 0, none is checked.
  /// \throws Error kCorruption  larger than `limit_bytes`, bad CRC (kind crc_mismatch); kUnsupported  unknown method.
  std::vector<std::byte> read(const Record& record, std::int64_t limit_bytes) const;
  /// The same of any size; the arena's budget pays. \throws Error kCorruption  the budget is spent.
  std::vector<std::byte> read(const Record& record, Arena& arena) const;
  /// What the file holds of the record's stored bytes, see RandomReader::allocated_bytes.
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
  void check_gap(const Record& record, std::int64_t gap, bool has_extra) const;

  std::shared_ptr<const RandomReader> file_;
  std::int64_t begin_ = 0, bytes_ = 0;
  bool has_checksums_ = false;  ///< False: all CRCs are 0.
  End end_;
  Window head_, tail_;
  std::string folder_;
  std::vector<Record> records_;
  std::vector<NameKey> by_name_;  ///< By hash, then name: sorted, so that no choice of names makes it slow.
};

/// Lays out a zip: add records in order, then everything but stored data is known except the CRCs.
/// Threads: const members may be called by several at once.
class ZipLayout {
 public:
  /// `folder` is the top folder's name ("archive").
  explicit ZipLayout(std::string folder);
  /// Adds a record; returns the offset of its data from the zip's first byte, a multiple of 64.
  /// \throws Error kCorruption  the zip would not fit 63 bits.
  std::int64_t add(std::string_view name, std::int64_t bytes);
  std::size_t size() const { return entries_.size(); }
  std::int64_t header_offset(std::size_t record) const { return entries_[record].header; }
  std::int64_t data_offset(std::size_t record) const { return entries_[record].data; }
  std::int64_t data_bytes(std::size_t record) const { return entries_[record].bytes; }
  /// Bytes of the whole zip.
  std::int64_t total_bytes() const;

  /// Appends what stands between the record before and this one's data.
  void append_header(std::size_t record, std::string& out) const;
  /// Appends what stands between the record's data and the next record's header.
  void append_descriptor(std::size_t record, std::uint32_t crc, std::string& out) const;
  /// Appends the record's entry in the directory, which begins where the last record ends.
  void append_entry(std::size_t record, std::uint32_t crc, std::string& out) const;
  /// Appends what follows the directory's entries.
  void append_end(std::string& out) const;

  /// All bytes around the records' data as pieces (offset from the zip's first byte, content), given all CRCs: piece i
  /// ends where the data of record i begins; the last one is what follows the last record's data, to the end.
  struct Span {
    std::int64_t offset;
    std::string content;
  };
  std::vector<Span> frame(const std::vector<std::uint32_t>& crcs) const;

 private:
  struct Entry {
    std::string name;  ///< Without the folder: short ones take no memory of their own.
    std::int64_t header = 0, data = 0, bytes = 0;
  };
  std::string folder_;  ///< With its slash.
  std::vector<Entry> entries_;
  std::int64_t end_ = 0, directory_bytes_ = 0;
};

}  // namespace shard::zip
