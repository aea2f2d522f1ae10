#include "libshard/job/file_holders.h"

#include <fmt/format.h>

#include <algorithm>

#include "libshard/core/error.h"

namespace shard {

namespace {

/// Whether a file names a rank, and is held by other ranks but not by that one.
bool lies_with_another(const File& file, std::uint32_t index, const FileHolders& holders) {
  return file.rank >= 0 && !holders.of(index).empty() && !holders.holds(file.rank, index);
}

}  // namespace

bool FileHolders::holds(int rank, std::uint32_t file) const { return std::ranges::binary_search(ranks_[file], rank); }

int FileHolders::reader(std::uint32_t file) const {
  const std::vector<int>& ranks = ranks_[file];
  return ranks.empty() ? 0 : ranks[file % ranks.size()];
}

std::vector<int> FileHolders::readers() const {
  std::vector<int> all;
  for (std::uint32_t file = 0; file < ranks_.size(); ++file) all.push_back(reader(file));
  return all;
}

int FileHolders::sender(std::uint32_t file, std::uint32_t storage, int to) const {
  const std::vector<int>& ranks = ranks_[file];
  if (ranks.empty() || holds(to, file)) return to;
  return ranks[storage % ranks.size()];
}

FileHolders find_holders(const Reader& reader, const GroupStore& store) {
  const Catalog& catalog = reader.catalog();
  std::vector<bool> is_read(catalog.files.size());
  for (const Storage& storage : catalog.storages) is_read[storage.file] = true;
  std::vector<std::vector<int>> ranks(catalog.files.size());
  for (std::uint32_t file = 0; file < ranks.size(); ++file) {
    if (is_read[file] || catalog.files[file].rank >= 0) ranks[file] = store.holders(reader.file(file)->name());
  }
  return FileHolders(std::move(ranks));
}

void check_file_ranks(const Catalog& catalog, const FileHolders& holders, int ranks) {
  if (!catalog.rank_files) return;
  for (std::uint32_t file = 0; file < catalog.files.size(); ++file) {
    const File& each = catalog.files[file];
    if (each.rank < 0) continue;
    if (catalog.world_size && *catalog.world_size != ranks) {
      throw Error(ErrorCode::kCorruption, "the file was saved by a different number of ranks than this job has")
          .in_file(each.path)
          .of_kind(FindingKind::kWorldSizeMismatch)
          .expected(ranks)
          .found(*catalog.world_size);
    }
    if (!lies_with_another(each, file, holders)) continue;
    const int holder = holders.of(file).front();
    throw Error(ErrorCode::kCorruption, fmt::format("rank {} has a file of a different rank", holder))
        .in_file(each.path)
        .of_kind(FindingKind::kRankMismatch)
        .expected(fmt::format("rank {}", holder))
        .found(fmt::format("rank {}", each.rank));
  }
}

std::string warning_of_file_ranks(const Catalog& catalog, const FileHolders& holders, int ranks) {
  constexpr int kNamed = 3;
  if (catalog.rank_files || catalog.world_size != ranks) return {};
  std::string text;
  int count = 0;
  for (std::uint32_t file = 0; file < catalog.files.size(); ++file) {
    const File& each = catalog.files[file];
    if (!lies_with_another(each, file, holders) || ++count > kNamed) continue;
    text += fmt::format("{}'{}' of rank {} with rank {}", count == 1 ? "" : ", ", each.path, each.rank,
                        holders.of(file).front());
  }
  if (count == 0) return {};
  if (count > kNamed) text += fmt::format(" and {} more", count - kNamed);
  return "files are not on the ranks they name, so their content is sent between ranks: " + text;
}

}  // namespace shard
