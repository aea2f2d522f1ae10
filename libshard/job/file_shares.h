/// \file
/// FileShares: how ranks divide the files of an output whose files have one writer for each byte
/// (OutputTraits::whole_files). Inside libshard/job only.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "libshard/catalog/catalog.h"
#include "libshard/io/file_writer.h"
#include "libshard/io/run_copies.h"

namespace shard {

struct FileShares {
  std::vector<int> storage_ranks{};                   ///< By storage: the rank that fills it.
  std::vector<std::vector<std::int64_t>> of_files{};  ///< By file: begins of the ranks' shares, and the size; or empty.

  bool is_shared(std::uint32_t file) const { return !of_files.empty() && !of_files[file].empty(); }
  /// The share of a rank, which may be empty; of a file that is not shared, {0, 0}.
  ByteRange of(std::uint32_t file, int rank) const;
  /// The rank whose share has the byte. \pre the file is shared
  int rank_at(std::uint32_t file, std::int64_t offset) const;
};

/// Divides large files of whole tensors among ranks if there are fewer files than ranks; otherwise, and if no such file
/// is large, the result is empty. A file is divided at a multiple of step(file bytes) near the begin of a storage, so
/// that few bytes of a storage are in the share of a rank that does not fill it. Pure.
/// \param owners  by file
/// \param step  see OutputStore::share_bytes
FileShares share_files(const Catalog& target, const std::vector<int>& owners, int ranks,
                       const std::function<std::int64_t(std::int64_t bytes)>& step);

/// A file of which this rank writes a share. Other bytes, such as frames and the ends of storages, are kept for the
/// ranks to whose shares they belong. Threads: as a FileWriter. Ownership: borrows the file.
class SharedFile final : public FileWriter {
 public:
  using Kept = std::pair<std::int64_t, std::vector<std::byte>>;  ///< Bytes and their offset.

  /// \param file  null if the share is empty
  SharedFile(FileWriter* file, ByteRange share) : file_(file), share_(share) {}
  void write_at(std::int64_t offset_bytes, std::span<const std::byte> data) override;
  void allocate(std::int64_t bytes) override;
  void sync() override {}
  void close() override {}
  /// Returns the bytes of other ranks, and forgets them.
  std::vector<Kept> take_kept();

 private:
  void keep(std::int64_t offset, std::span<const std::byte> data);

  FileWriter* const file_;
  const ByteRange share_;
  std::mutex mutex_;
  std::vector<Kept> kept_;
};

}  // namespace shard
