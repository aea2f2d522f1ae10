#include "libshard/exec/copied_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <compare>
#include <map>
#include <optional>

#include "libshard/core/hash_table.h"

namespace shard {

namespace {

constexpr std::int64_t kFirstBlock = 1 << 16;
constexpr std::ptrdiff_t kComparedFiles = 4;  // The number of files with which one file is compared.

/// Properties of a storage that are equal in a file and its copy.
struct StoragePrint {
  std::int64_t file_bytes, offset, bytes;
  std::uint32_t crc;
  friend auto operator<=>(const StoragePrint&, const StoragePrint&) = default;
};

struct PlacedBox {
  std::uint32_t tensor;
  const Chunk* chunk;
  bool operator==(const PlacedBox& other) const {
    return tensor == other.tensor && chunk->offsets == other.chunk->offsets && chunk->sizes == other.chunk->sizes;
  }
};

struct StoragePart {
  StoragePrint print;
  std::uint32_t storage;
  std::vector<PlacedBox> boxes;  ///< In the order of tensors and offsets.
};

using StorageParts = std::vector<StoragePart>;

/// The storages of the tensors by file, sorted by print.
std::map<std::uint32_t, StorageParts> parts_by_file(const Catalog& catalog, std::span<const std::uint32_t> tensors) {
  std::map<std::uint32_t, StorageParts> files;
  HashMap<std::uint32_t, std::size_t> places;  // By storage: its index in the parts of its file.
  for (const std::uint32_t t : tensors) {
    const Tensor& tensor = catalog.tensors[t];
    for (const Chunk& chunk : catalog.chunks_of(tensor)) {
      const std::uint32_t index = catalog.stored[chunk.stored].storage;
      const Storage& storage = catalog.storages[index];
      if (storage.offset < 0 || storage.bytes == 0 || !storage.crc32) continue;
      StorageParts& parts = files[storage.file];
      const auto [place, is_new] = places.try_emplace(index, parts.size());
      if (is_new) {
        const StoragePrint print{catalog.files[storage.file].bytes, storage.offset, storage.bytes, *storage.crc32};
        parts.push_back({print, index, {}});
      }
      parts[place].boxes.push_back({t, &chunk});
    }
  }
  for (auto& [file, parts] : files) std::ranges::stable_sort(parts, {}, &StoragePart::print);
  return files;
}

/// True for a storage whose first block is one repeated value, or cannot be read.
bool is_one_value(const Catalog& catalog, const StoragePart& part, const BytesOf& bytes_of) {
  const Storage& storage = catalog.storages[part.storage];
  std::vector<std::byte> block(static_cast<std::size_t>(std::min(storage.bytes, kFirstBlock)));
  try {
    bytes_of(part.storage)->read_at(storage.offset, block);
  } catch (const Error& error) {
    if (!is_damage(error)) throw;
    return true;
  }
  const DType dtype = catalog.stored[part.boxes.front().chunk->stored].dtype;
  const auto element = static_cast<std::size_t>(dtype_block(dtype).bytes);
  for (std::size_t i = element; i < block.size(); ++i) {
    if (block[i] != block[i - element]) return false;
  }
  return true;
}

class CopySearch {
 public:
  CopySearch(const Catalog& catalog, std::span<const std::uint32_t> tensors, const BytesOf& bytes_of)
      : catalog_(catalog), bytes_of_(bytes_of), files_(parts_by_file(catalog, tensors)) {
    for (const auto& [file, parts] : files_) {
      for (const StoragePart& part : parts) holders_.push_back({part.print, file});
    }
    std::ranges::sort(holders_);
  }

  std::vector<FilePair> run() {
    for (const auto& [file, parts] : files_) {
      if (const std::optional<std::uint32_t> with = copied_from(file, parts)) {
        copies_.insert(file);
        pairs_.emplace_back(std::minmax(file, *with));
      }
    }
    return std::move(pairs_);
  }

 private:
  using Holder = std::pair<StoragePrint, std::uint32_t>;  // A file with such a storage.

  std::span<const Holder> holders_of(const StoragePrint& print) const {
    const auto found = std::ranges::equal_range(holders_, print, {}, &Holder::first);
    return {found.begin(), found.end()};
  }

  /// The files that contain the rarest storage of a file, which are few.
  std::span<const Holder> alike(const StorageParts& parts) const {
    std::span<const Holder> rarest;
    for (const StoragePart& part : parts) {
      const std::span<const Holder> all = holders_of(part.print);
      if (rarest.empty() || all.size() < rarest.size()) rarest = all;
    }
    return rarest;
  }

  std::optional<std::uint32_t> copied_from(std::uint32_t file, const StorageParts& parts) const {
    std::ptrdiff_t compared = 0;
    for (const auto& [print, other] : alike(parts)) {
      // A copy may contain more than the file that it replaced. If two files contain the same, the later one counts as
      // the copy.
      const StorageParts& others = files_.at(other);
      const bool is_later = others.size() == parts.size() && other > file;
      if (other == file || is_later || others.size() < parts.size() || copies_.contains(other)) continue;
      if (is_copy(parts, others)) return other;
      if (++compared == kComparedFiles) return std::nullopt;
    }
    return std::nullopt;
  }

  bool is_copy(const StorageParts& parts, const StorageParts& others) const {
    std::vector<const StoragePart*> different;
    for (const StoragePart& part : parts) {
      const auto there = std::ranges::equal_range(others, part.print, {}, &StoragePart::print);
      if (there.empty()) return false;
      const auto is_replica = [&](const StoragePart& other) { return part.boxes == other.boxes; };
      if (std::ranges::none_of(there, is_replica)) different.push_back(&part);
    }
    if (std::ranges::none_of(different, [this](const StoragePart* part) { return is_divided(*part); })) return false;
    for (const StoragePart* part : different) {
      const Storage& storage = catalog_.storages[part->storage];
      bytes_of_(part->storage)->expect_read(storage.offset, std::min(storage.bytes, kFirstBlock));
    }
    return !std::ranges::all_of(different,
                                [this](const StoragePart* part) { return is_one_value(catalog_, *part, bytes_of_); });
  }

  /// True for a part of a tensor, and for a buffer of several.
  bool is_divided(const StoragePart& part) const {
    const PlacedBox& first = part.boxes.front();
    return part.boxes.size() > 1 || !(first.chunk->sizes == catalog_.tensors[first.tensor].shape);
  }

  const Catalog& catalog_;
  const BytesOf& bytes_of_;
  std::map<std::uint32_t, StorageParts> files_;
  std::vector<Holder> holders_;  // Sorted.
  std::set<std::uint32_t> copies_;
  std::vector<FilePair> pairs_;
};

}  // namespace

std::vector<FilePair> copied_files(const Catalog& catalog, std::span<const std::uint32_t> tensors,
                                   const BytesOf& bytes_of) {
  return CopySearch(catalog, tensors, bytes_of).run();
}

Error copied_file(const Catalog& catalog, const FilePair& pair) {
  const std::string &a = catalog.files[pair.first].path, &b = catalog.files[pair.second].path;
  return Error(ErrorCode::kCorruption, fmt::format("{} and {} contain the same elements", a, b))
      .in_file(b)
      .of_kind(FindingKind::kRankMismatch)
      .because("they should contain different boxes, so one may be a copy of the other; which one is unknown");
}

void CopyWarnings::look(Catalog& catalog, std::span<const std::uint32_t> tensors, const BytesOf& bytes_of,
                        Findings& findings) {
  for (const FilePair& pair : copied_files(catalog, tensors, bytes_of)) {
    if (!reported_.insert(pair).second) continue;
    const Error error = copied_file(catalog, pair);
    findings.warn(error);
    catalog.warnings.push_back(fmt::format("{}: {}", error.what(), error.why()));
  }
}

}  // namespace shard
