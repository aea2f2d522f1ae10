#include "libshard/verify/manifest_check.h"

#include <fmt/format.h>

#include <utility>

#include "libshard/core/error.h"
#include "libshard/io/paths.h"
#include "libshard/ranks/wire.h"

namespace shard {

namespace {

/// Reduces the manifest to the entries for `paths`.
void keep_files(StatedFiles& stated, const std::vector<std::string>& paths) {
  std::vector<ManifestFile> kept;
  for (const std::string& path : paths) {
    const ManifestFile* file = stated.manifest.find(base_name(path));
    if (file == nullptr) {
      throw Error(ErrorCode::kCorruption, fmt::format("the manifest has no entry for '{}'", base_name(path)))
          .in_file(path)
          .of_kind(FindingKind::kExtraFile)
          .hint("use the manifest of this checkpoint");
    }
    kept.push_back(*file);
  }
  stated.is_part = kept.size() < stated.manifest.files.size();
  stated.manifest.files = std::move(kept);
}

}  // namespace

StatedFiles read_manifest(const SourceStore& store, const std::string& manifest,
                          const std::vector<std::string>& paths) {
  StatedFiles stated{parse_manifest(manifest_bytes(store, manifest), manifest), &store, {}, {}};
  const bool is_folder = paths.size() == 1 && store.is_folder(paths[0]);
  if (is_folder) {
    stated.folder = paths[0];
  } else if (paths.size() == 1 && stated.manifest.files.size() == 1) {
    stated.file = paths[0];
  } else {
    keep_files(stated, paths);
    if (paths.size() == 1) stated.file = paths[0];
    stated.folder = paths.size() == 1 ? std::string() : parent_path(paths[0]);
  }
  // Findings name the file that is compared, which may be a copy with another name.
  if (!stated.file.empty()) stated.manifest.files.front().path = base_name(stated.file);
  return stated;
}

std::vector<bool> ManifestCheck::check_files() {
  std::vector<bool> is_there;
  for (const ManifestFile& file : stated_.manifest.files) is_there.push_back(check_file(file));
  if (!stated_.folder.empty() && !stated_.is_part) warn_of_extra_files();
  return is_there;
}

/// Refuses a name that leads out of the folder before it accesses the disk.
bool ManifestCheck::check_file(const ManifestFile& file) {
  try {
    const std::int64_t bytes = stated_.open(file)->size();
    if (bytes == file.bytes) return true;
    findings_.report(Error(ErrorCode::kCorruption,
                           fmt::format("the manifest records {} bytes, but the file has {}", file.bytes, bytes))
                         .in_file(file.path)
                         .expected(file.bytes)
                         .found(bytes)
                         .of_kind(bytes < file.bytes ? FindingKind::kTruncated : FindingKind::kHashMismatch));
    return true;
  } catch (Error& error) {
    if (error.code() != ErrorCode::kNotFound) {
      findings_.report(error.replace_file(file.path));
      return false;
    }
  }
  findings_.report(Error(ErrorCode::kNotFound, fmt::format("the manifest names {}, which is missing", file.path))
                       .in_file(file.path)
                       .of_kind(FindingKind::kMissingFile)
                       .hint("fetch the missing file"));
  return false;
}

/// Checks only the folder itself, because subfolders may belong to other programs.
void ManifestCheck::warn_of_extra_files() const {
  std::set<std::string_view> named;
  for (const ManifestFile& file : stated_.manifest.files) named.insert(file.path);
  for (const std::string& name : stated_.store->list(stated_.folder)) {
    if (name == kManifestName || named.contains(name)) continue;
    if (!stated_.store->is_file(join_path(stated_.folder, name))) continue;
    findings_.warn(Error(ErrorCode::kCorruption, "the manifest has no entry for this file")
                       .in_file(name)
                       .of_kind(FindingKind::kExtraFile)
                       .because("it was added after the checkpoint was written"));
  }
}

void ManifestCheck::compare(std::size_t file, std::int64_t block, const std::string& hash) {
  const ManifestFile& stated = stated_.manifest.files[file];
  if (block >= block_count(stated.bytes)) return;  // The file is longer than stated, which was reported already.
  const bool differs = hash != stated.block(block, stated_.manifest.algorithm);
  const std::scoped_lock lock(mutex_);
  ++compared_;
  if (differs) differing_[file].insert(block);
}

void ManifestCheck::gather(Group& group) {
  const auto write = [&](WireWriter& own) {
    own.number(compared_);
    for (const auto& [file, blocks] : differing_) {
      for (const std::int64_t block : blocks) own.number(static_cast<std::int64_t>(file)), own.number(block);
    }
  };
  const auto read = [&](WireReader& from) {
    compared_ += from.number();
    while (!from.at_end()) {
      const std::int64_t file = from.number_below(std::ssize(stated_.manifest.files));
      differing_[static_cast<std::size_t>(file)].insert(from.number());
    }
  };
  send_to_first(group, write, read);
}

void ManifestCheck::report() const {
  for (const auto& [index, blocks] : differing_) {
    const ManifestFile& file = stated_.manifest.files[index];
    for (auto first = blocks.begin(); first != blocks.end();) {
      auto next = first;
      std::int64_t last = *first;
      while (++next != blocks.end() && *next == last + 1) ++last;
      report_blocks(file, *first, last);
      first = next;
    }
  }
}

void ManifestCheck::report_blocks(const ManifestFile& file, std::int64_t first, std::int64_t last) const {
  const std::string blocks =
      first == last ? fmt::format("block {} differs", first) : fmt::format("blocks {} to {} differ", first, last);
  findings_.report(
      Error(ErrorCode::kCorruption, fmt::format("{} from the manifest: bytes [{}, {})", blocks, first * kManifestBlock,
                                                std::min(file.bytes, (last + 1) * kManifestBlock)))
          .in_file(file.path)
          .of_kind(FindingKind::kHashMismatch)
          .because("the file changed after it was written")
          .hint("download the file again, or restore it from a backup"));
}

}  // namespace shard
