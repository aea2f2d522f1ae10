#include "libshard/io/destination.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <iterator>
#include <set>
#include <span>
#include <thread>
#include <vector>

#include "libshard/core/digest.h"
#include "libshard/core/error.h"
#include "libshard/core/random_bytes.h"
#include "libshard/io/paths.h"

namespace shard {

namespace {

constexpr std::string_view kMark = ".shardctl-";
constexpr std::size_t kRandomDigits = 8;
constexpr std::size_t kMaxNameBytes = 200;  ///< The part of DST's name in a sibling's, which has at most 255.
constexpr int kMaxFolderDepth = 4096;       ///< The limit on the parents that are checked.

std::string random_digits() {
  std::uint32_t number = 0;
  draw_random(std::as_writable_bytes(std::span(&number, 1)));  // Not std::random_device, which may need a file in /dev.
  return fmt::format("{:08x}", number);
}

/// The common prefix of all siblings of a DST with that name: the name, or for a long name its front and its hash.
std::string front_of(const std::string& name) {
  if (name.size() <= kMaxNameBytes) return fmt::format(".{}{}", name, kMark);
  Hasher hasher(HashAlgorithm::kXxh3_128);
  hasher.update(name);
  const std::string hash = hasher.finish_hex();
  return fmt::format(".{}~{}{}", std::string_view(name).substr(0, kMaxNameBytes - hash.size() - 1), hash, kMark);
}

/// kAbsent if this user may not look at it, as above a working directory that a different user entered.
FileStatus status_if_allowed(const LocalDisk& fs, const std::string& path) try {
  return fs.status(path);
} catch (const Error&) {
  return {};
}

/// The folder and its parents, up to the root, or to the first that this user may not look at.
std::vector<FileStatus> folders_up(const LocalDisk& fs, std::string folder) {
  std::vector<FileStatus> folders{fs.status(folder)};
  for (int depth = 0; depth < kMaxFolderDepth; ++depth) {
    folder = join_path(folder, "..");
    const FileStatus above = status_if_allowed(fs, folder);
    if (above.kind != FileKind::kFolder || is_same(above, folders.back())) break;
    folders.push_back(above);
  }
  return folders;
}

bool holds(std::span<const FileStatus> all, const FileStatus& wanted) {
  return std::ranges::any_of(all, [&](const FileStatus& each) { return is_same(each, wanted); });
}

/// Whether `folder` or a parent folder is `wanted`.
bool is_or_lies_in(const LocalDisk& fs, const std::string& folder, const FileStatus& wanted) {
  return holds(folders_up(fs, folder), wanted);
}

/// Whether `is_wanted` returns true for an entry inside the folder `name`, which it receives with its folder and
/// status. Skips folders that cannot be opened or listed.
template <class IsWanted>
bool any_inside(LocalFolder& parent, const std::string& name, const IsWanted& is_wanted) try {
  const std::unique_ptr<LocalFolder> folder = parent.open_folder(name);
  return std::ranges::any_of(folder->list(), [&](const std::string& entry) {
    const FileStatus status = folder->status_of(entry);
    return is_wanted(*folder, entry, status) ||
           (status.kind == FileKind::kFolder && any_inside(*folder, entry, is_wanted));
  });
} catch (const Error&) {
  return false;
}

/// Whether a file in the folder is `wanted`, perhaps under a different name.
bool holds_file(const LocalDisk& fs, const std::string& folder, const FileStatus& wanted) {
  for (const std::string& name : fs.list(folder)) {
    if (is_same(fs.status(join_path(folder, name)), wanted)) return true;
  }
  return false;
}

/// Whether links in `folder`, which is resolved, lead to the folder `wanted` or into it. Searches its sub-folders, if
/// `is_deep`, and the folders to which links lead, but not the folders in those. Skips folders that cannot be listed.
bool has_links_into(const LocalDisk& fs, const std::string& folder, const FileStatus& wanted, bool is_deep) {
  if (!fs.is_folder(folder)) return false;
  std::vector<std::string> names;
  try {
    names = fs.list(folder);
  } catch (const Error&) {
  }
  return std::ranges::any_of(names, [&](const std::string& name) {
    const std::string entry = fs.resolved(join_path(folder, name));
    const bool is_link = parent_path(entry) != folder;
    if (is_link && (is_same(fs.status(entry), wanted) || is_or_lies_in(fs, parent_path(entry), wanted))) return true;
    return is_deep && has_links_into(fs, entry, wanted, !is_link);
  });
}

/// Whether the source or one of its files is in the folder `wanted`, directly or through links.
bool has_file_in(const LocalDisk& fs, const std::string& source, const FileStatus& wanted) {
  const std::string whole = fs.resolved(source);
  return is_or_lies_in(fs, parent_path(source), wanted) || is_or_lies_in(fs, parent_path(whole), wanted) ||
         has_links_into(fs, whole, wanted, true);
}

[[noreturn]] void fail_overlap(const Destination& to, const std::string& source, const char* relation) {
  throw Error(ErrorCode::kExists, fmt::format("cannot write: the destination {}", relation))
      .in_file(to.path)
      .because(fmt::format("source and output overlap: {}", source))
      .hint("choose another destination");
}

}  // namespace

Destination::Destination(const std::string& destination)
    : parent(parent_path(destination)), name(base_name(destination)), path(join_path(parent, name)) {
  if (name.empty() || name == "." || name == ".." || name == "/") {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("cannot write to '{}': it does not name a new file or folder", destination));
  }
  if (parent == "." && destination.front() != '.') path = name;  // Written in the user's spelling.
}

std::string Destination::sibling(std::string_view kind) const {
  return fmt::format("{}{}{}", front_of(name), kind, random_digits());
}

bool Destination::is_sibling(std::string_view entry) const {
  const std::string prefix = front_of(name);
  return entry.size() == prefix.size() + kRandomDigits && entry.starts_with(prefix) &&
         entry.substr(prefix.size()).find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

const char* find_overlap(const LocalDisk& fs, const Destination& to, const std::string& source) {
  const FileStatus from = fs.status(source), there = fs.status(to.path);
  if (is_same(from, there)) return "is the source";
  if (from.kind == FileKind::kFolder && is_or_lies_in(fs, to.parent, from)) return "is inside the source";
  if (from.kind == FileKind::kFolder && there.kind == FileKind::kFile && holds_file(fs, source, there)) {
    return "is one of the source's files";
  }
  return there.kind == FileKind::kFolder && has_file_in(fs, source, there) ? "contains the source" : nullptr;
}

void check_overlap(const LocalDisk& fs, const Destination& to, const std::string& source) {
  if (const char* const relation = find_overlap(fs, to, source); relation != nullptr)
    fail_overlap(to, source, relation);
}

void check_mounts(LocalDisk& disk, LocalFolder& parent, const Destination& to,
                  const std::vector<std::string>& sources) {
  std::vector<FileStatus> above;
  std::set<std::string> known;
  for (const std::string& source : sources) {
    const std::string whole = disk.resolved(source);
    const std::string folder = disk.is_folder(whole) ? whole : parent_path(whole);
    if (known.insert(folder).second) std::ranges::copy(folders_up(disk, folder), std::back_inserter(above));
  }
  std::string mounted;
  bool has_source = false;
  any_inside(parent, to.name, [&](LocalFolder& folder, const std::string& entry, const FileStatus& status) {
    has_source = status.kind == FileKind::kFolder && holds(above, status);
    if (mounted.empty() && folder.is_mount_point(entry)) mounted = join_path(folder.path(), entry);
    return has_source;
  });
  if (has_source) fail_overlap(to, fmt::format("{}", fmt::join(sources, " ")), "contains the source");
  if (mounted.empty()) return;
  throw Error(ErrorCode::kExists, "cannot write: the destination contains a mount point")
      .in_file(to.path)
      .because(fmt::format("the files that are mounted at {} would be removed", mounted))
      .hint("unmount it, or choose another destination");
}

void check_no_mount_point(const LocalFolder& parent, const Destination& to) {
  if (!parent.is_mount_point(to.name)) return;
  throw Error(ErrorCode::kExists, "cannot write: the destination is a mount point")
      .in_file(to.path)
      .because("mount points cannot be replaced")
      .hint(parent.status_of(to.name).kind == FileKind::kFolder
                ? fmt::format("write to a new name inside it: {}", join_path(to.path, "NAME"))
                : "write to a different name");
}

void check_replaceable(const LocalDisk& fs, const Destination& to) {
  if (fs.status(to.path).kind != FileKind::kOther) return;
  throw Error(ErrorCode::kExists, "cannot write: the destination is neither a file nor a folder")
      .in_file(to.path)
      .because("devices, pipes and sockets are never replaced")
      .hint("choose another destination");
}

std::unique_ptr<LocalFolder> lock_commits(LocalFolder& parent) try {
  constexpr int kAttempts = 100;
  std::unique_ptr<LocalFolder> lock = parent.open_folder(".");
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    if (lock->try_lock()) return lock;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return nullptr;
} catch (const Error&) {
  return nullptr;
}

void fail_elsewhere(const Destination& to) {
  throw Error(ErrorCode::kResource, "cannot write: this rank does not see the folder that a different rank has created")
      .in_file(to.path)
      .because("the destination is not on one disk that all ranks share")
      .hint("choose a destination that all ranks share, or write the files of each rank to its own");
}

void check_absent(const FileStatus& there, const Destination& to) {
  if (there.kind == FileKind::kAbsent) return;
  throw Error(ErrorCode::kExists, "cannot write: the destination already exists")
      .in_file(to.path)
      .suggest(Remedy::kReplaceDestination);
}

}  // namespace shard
