#include "libshard/io/local_output.h"

#include <fmt/format.h>

#include <cstring>
#include <random>
#include <set>
#include <string_view>
#include <vector>

#include "libshard/core/checked.h"
#include "libshard/core/error.h"
#include "libshard/io/file_writer.h"
#include "libshard/io/paths.h"

namespace shard {

namespace {

constexpr std::string_view kMark = ".shardctl-";
constexpr std::size_t kRandomDigits = 8;
constexpr int kMaxFolderDepth = 4096;  ///< At most so many parents are checked.

std::string random_digits() {
  std::random_device device;
  return fmt::format("{:08x}", device());
}

/// DST taken apart: `parent`/`name`, without slashes at the end.
struct Destination {
  std::string parent, name, path;

  explicit Destination(const std::string& destination)
      : parent(parent_path(destination)), name(base_name(destination)), path(join_path(parent, name)) {
    if (name.empty() || name == "." || name == ".." || name == "/") {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("cannot write to '{}': it does not name a new file or folder", destination));
    }
    if (parent == "." && destination.front() != '.') path = name;  // As the user wrote it.
  }
  std::string sibling(std::string_view kind = "") const {
    return join_path(parent, fmt::format(".{}{}{}{}", name, kMark, kind, random_digits()));
  }
  /// True for what sibling() makes.
  bool is_sibling(std::string_view entry) const {
    const std::string prefix = fmt::format(".{}{}", name, kMark);
    return entry.size() == prefix.size() + kRandomDigits && entry.starts_with(prefix) &&
           entry.substr(prefix.size()).find_first_not_of("0123456789abcdef") == std::string_view::npos;
  }
};

bool same(const FileStatus& a, const FileStatus& b) {
  return a.kind != FileKind::kAbsent && a.device == b.device && a.inode == b.inode;
}

/// True when `folder` or a folder above it is `wanted`.
bool is_or_lies_in(const LocalDisk& fs, std::string folder, const FileStatus& wanted) {
  FileStatus at = fs.status(folder);
  for (int depth = 0; depth < kMaxFolderDepth; ++depth) {
    if (same(at, wanted)) return true;
    folder = join_path(folder, "..");
    const FileStatus above = fs.status(folder);
    if (above.kind != FileKind::kFolder || same(above, at)) return false;
    at = above;
  }
  return false;
}

/// True when a file of the folder is `wanted`, by another name perhaps.
bool holds_file(const LocalDisk& fs, const std::string& folder, const FileStatus& wanted) {
  for (const std::string& name : fs.list(folder)) {
    if (same(fs.status(join_path(folder, name)), wanted)) return true;
  }
  return false;
}

void check_overlap(const LocalDisk& fs, const Destination& to, const FileStatus& there, const std::string& source) {
  const FileStatus from = fs.status(source);
  const char* relation = nullptr;
  if (same(from, there)) {
    relation = "is the source";
  } else if (from.kind == FileKind::kFolder && is_or_lies_in(fs, to.parent, from)) {
    relation = "lies in the source";
  } else if (from.kind == FileKind::kFolder && there.kind == FileKind::kFile && holds_file(fs, source, there)) {
    relation = "is one of the source's files";
  } else if (there.kind == FileKind::kFolder && is_or_lies_in(fs, parent_path(source), there)) {
    relation = "holds the source";
  }
  if (relation == nullptr) return;
  throw Error(ErrorCode::kExists, fmt::format("cannot write: the destination {}", relation))
      .in_file(to.path)
      .because(fmt::format("source and output overlap: {}", source))
      .hint("write to another place");
}

void check_absent(const FileStatus& there, const Destination& to) {
  if (there.kind == FileKind::kAbsent) return;
  throw Error(ErrorCode::kExists, "cannot write: the destination exists already")
      .in_file(to.path)
      .suggest(Remedy::kReplaceDestination);
}

/// Best effort: what cannot be listed or removed harms nobody.
void remove_left_siblings(LocalDisk& fs, const Destination& to) {
  try {
    for (const std::string& entry : fs.list(to.parent)) {
      if (!to.is_sibling(entry)) continue;
      const std::string path = join_path(to.parent, entry);
      if (const std::shared_ptr<void> lock = fs.try_lock(path)) fs.remove_all(path);
    }
  } catch (const Error&) {
  }
}

/// Where a begun output is staged, and whether it is a folder: what a token says.
struct Staged {
  std::string path;
  bool is_folder = true;

  std::vector<std::byte> token() const {
    std::vector<std::byte> bytes(path.size() + 1);
    bytes[0] = static_cast<std::byte>(is_folder);
    std::memcpy(bytes.data() + 1, path.data(), path.size());
    return bytes;
  }
  static Staged of_token(std::span<const std::byte> token) {
    if (token.empty()) throw Error(ErrorCode::kPeer, "another rank's output has no place");
    return {std::string(reinterpret_cast<const char*>(token.data()) + 1, token.size() - 1), token[0] != std::byte{0}};
  }
  std::string file(const std::string& name) const { return is_folder ? join_path(path, name) : path; }
};

class LocalPart final : public OutputPart {
 public:
  LocalPart(LocalDisk& disk, Staged staged, bool sync) : disk_(disk), staged_(std::move(staged)), sync_(sync) {}

  FileWriter& create(const OutputFile& file) override {
    writers_.push_back(disk_.create(staged_.file(file.path)));
    writers_.back()->allocate(file.bytes);
    return *writers_.back();
  }

  FileWriter& open(const std::string& path) override {
    writers_.push_back(disk_.open_existing(staged_.file(path)));
    return *writers_.back();
  }

  void finish() override {
    for (const auto& writer : writers_) {
      if (sync_) writer->sync();
      writer->close();
    }
    writers_.clear();
  }

 private:
  LocalDisk& disk_;
  const Staged staged_;
  const bool sync_;
  std::vector<std::unique_ptr<FileWriter>> writers_;
};

class LocalOutput final : public Output {
 public:
  LocalOutput(LocalDisk& fs, Destination to, const LocalOutputOptions& options, std::span<const OutputFile> files,
              bool is_folder)
      : fs_(fs), to_(std::move(to)), options_(options) {
    try {
      make_temporary();
      staged_ = {join_path(temporary_, to_.name), is_folder};
      if (is_folder) make_folders(files);
    } catch (...) {
      abort();  // The destructor of an unfinished object does not run.
      throw;
    }
  }
  ~LocalOutput() override { abort(); }

  std::vector<std::byte> token() const override { return staged_.token(); }

  void commit() override {
    finish_folders();
    publish();
    abort();  // What is left of the sibling, and the old DST in it. Failing to remove that undoes nothing.
  }

  void abort() noexcept override {
    if (temporary_.empty()) return;
    try {
      fs_.remove_all(temporary_);
    } catch (...) {  // A later run removes it.
    }
    temporary_.clear();
    lock_.reset();
  }

 private:
  void make_temporary() {
    constexpr int kAttempts = 4;  // Another run may take a folder that is not locked yet for a left one.
    for (int attempt = 0; lock_ == nullptr && attempt < kAttempts; ++attempt) {
      if (!temporary_.empty()) fs_.remove_all(temporary_);
      temporary_ = to_.sibling();
      fs_.make_folder(temporary_);
      lock_ = fs_.try_lock(temporary_);
    }  // Still none: the file system has no locks, and nobody else can take it either.
  }

  void make_folder(const std::string& path) {
    fs_.make_folder(path);
    folders_.insert(path);
  }

  void make_folders(std::span<const OutputFile> files) {
    make_folder(staged_.path);
    for (const OutputFile& file : files) make_parents(file.path);
  }

  /// Makes the folders in a file's path.
  void make_parents(const std::string& path) {
    std::string folder = staged_.path;
    std::size_t begin = 0;
    for (;;) {
      const std::size_t end = std::min(path.find('/', begin), path.size());
      const std::string part = path.substr(begin, end - begin);
      if (part.empty() || part == "." || part == "..") {
        throw Error(ErrorCode::kInvalidArgument,
                    fmt::format("cannot write '{}': it is not a file below the destination", path))
            .in_file(to_.path);
      }
      if (end == path.size()) return;
      folder = join_path(folder, part);
      if (!folders_.contains(folder)) make_folder(folder);
      begin = end + 1;
    }
  }

  void finish_folders() {
    for (const std::string& folder : folders_) {
      fs_.set_default_mode(folder);
      if (options_.sync) fs_.sync_folder(folder);
    }
  }

  /// Makes the new content visible. A failure after that takes it back, so that an error always means the old state.
  void publish() {
    const bool replaces = exists();
    if (replaces && !options_.force) check_absent(fs_.status(to_.path), to_);
    if (!replaces) {
      fs_.rename_new(staged_.path, to_.path);
      sync_parent_or([&] { fs_.rename_new(to_.path, staged_.path); });
    } else if (fs_.exchange(staged_.path, to_.path)) {
      sync_parent_or([&] { fs_.exchange(staged_.path, to_.path); });
    } else {
      replace_by_steps();
    }
  }

  bool exists() const { return fs_.status(to_.path).kind != FileKind::kAbsent; }

  void replace_by_steps() {
    const std::string aside = to_.sibling("old-");
    fs_.rename_new(to_.path, aside);
    try {
      fs_.rename_new(staged_.path, to_.path);
    } catch (...) {
      fs_.rename_new(aside, to_.path);
      throw;
    }
    sync_parent_or([&] {
      fs_.rename_new(to_.path, staged_.path);
      fs_.rename_new(aside, to_.path);
    });
    try {
      fs_.remove_all(aside);
    } catch (const Error&) {  // The new content is there; what is left is the old one.
    }
  }

  template <class Undo>
  void sync_parent_or(Undo undo) {
    if (!options_.sync) return;
    try {
      fs_.sync_folder(to_.parent);
    } catch (...) {
      undo();
      throw;
    }
  }

  LocalDisk& fs_;
  const Destination to_;
  const LocalOutputOptions options_;
  std::string temporary_;
  Staged staged_;
  std::shared_ptr<void> lock_;
  std::set<std::string> folders_;  ///< Made below the temporary one; each gets its mode and is synced once.
};

void check_destination(const LocalDisk& fs, const Destination& to, const std::vector<std::string>& sources,
                       const LocalOutputOptions& options) {
  if (fs.status(to.parent).kind != FileKind::kFolder) {
    throw Error(ErrorCode::kResource, "cannot write the destination: the folder above it does not exist")
        .in_file(to.parent)
        .hint(fmt::format("mkdir -p '{}'", to.parent));
  }
  const FileStatus there = fs.status(to.path);
  for (const std::string& source : sources) check_overlap(fs, to, there, source);
  if (!options.force) check_absent(there, to);
}

class LocalStore final : public OutputStore {
 public:
  LocalStore(LocalDisk& disk, const std::string& destination, const std::vector<std::string>& sources,
             const LocalOutputOptions& options)
      : disk_(disk), to_(destination), options_(options) {
    check_destination(disk_, to_, sources, options_);
  }

  std::int64_t free_bytes() const override { return disk_.free_bytes(to_.parent); }

  std::unique_ptr<Output> begin(std::span<const OutputFile> files, bool is_folder) override {
    remove_left_siblings(disk_, to_);
    check_space(files);
    return std::make_unique<LocalOutput>(disk_, to_, options_, files, is_folder);
  }

  std::unique_ptr<OutputPart> part(std::span<const std::byte> token) override {
    return std::make_unique<LocalPart>(disk_, Staged::of_token(token), options_.sync);
  }

 private:
  /// After the removal of what killed runs left behind.
  void check_space(std::span<const OutputFile> files) const {
    std::int64_t needed = 0;
    for (const OutputFile& file : files) needed = checked_add(needed, file.bytes);
    const std::int64_t free = free_bytes();
    if (free >= needed) return;
    throw Error(ErrorCode::kResource, fmt::format("the output needs {} bytes, the disk has {} free", needed, free))
        .in_file(to_.path)
        .expected(needed)
        .found(free)
        .hint("free some space, or write to another disk");
  }

  LocalDisk& disk_;
  const Destination to_;
  const LocalOutputOptions options_;
};

}  // namespace

std::unique_ptr<OutputStore> local_output(LocalDisk& disk, const std::string& destination,
                                          const std::vector<std::string>& sources, const LocalOutputOptions& options) {
  return std::make_unique<LocalStore>(disk, destination, sources, options);
}

}  // namespace shard
