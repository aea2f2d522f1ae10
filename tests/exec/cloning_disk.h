/// \file
/// A LocalDisk that can only clone, within memory, for tests of cloning.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "libshard/io/file_writer.h"
#include "libshard/io/local_disk.h"

namespace shard::testing {

/// Clones by copying, like XFS on disk, or refuses; counts the requests.
class CloningDisk : public LocalDisk {
 public:
  explicit CloningDisk(bool can) : can_(can) {}
  bool clone_range(const RandomReader& from, std::int64_t from_bytes, FileWriter& to, std::int64_t to_bytes,
                   std::int64_t bytes) override {
    ++asked;
    is_aligned = is_aligned && (from_bytes % 4096 | to_bytes % 4096 | bytes % 4096) == 0;
    if (!can_) return false;
    std::vector<std::byte> copy(static_cast<std::size_t>(bytes));
    from.read_at(from_bytes, copy);
    to.write_at(to_bytes, copy);
    return true;
  }
  FileStatus status(const std::string&) const override { return {}; }
  std::vector<std::string> list(const std::string&) const override { return {}; }
  std::unique_ptr<RandomReader> open(const std::string&) const override { return nullptr; }
  std::unique_ptr<RandomReader> open_below(const std::string&, const std::string&) const override { return nullptr; }
  std::unique_ptr<LocalFolder> open_folder(const std::string&) override { return nullptr; }
  std::string resolved(const std::string& path) const override { return path; }

  int asked = 0;
  bool is_aligned = true;  ///< All requests were whole blocks.

 private:
  bool can_;
};

}  // namespace shard::testing
