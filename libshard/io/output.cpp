#include "libshard/io/output.h"

#include <fmt/format.h>

#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <string_view>
#include <vector>

#include "libshard/core/error.h"
#include "libshard/io/file_writer.h"
#include "libshard/io/paths.h"

namespace shard {

namespace {

constexpr std::string_view kMark = ".shardctl-";
constexpr std::size_t kRandomDigits = 8;
constexpr int kMaxFolderDepth = 4096;  ///< Of parents that are looked at.

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
      throw Error(ErrorCode::kInvalidArgument, fmt::format("'{}' names no file or folder to make", destination));
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
  throw Error(ErrorCode::kExists, fmt::format("the destination {}", relation))
      .in_file(to.path)
      .because(fmt::format("source and output overlap: {}", source))
      .hint("write to another place");
}

void check_absent(const FileStatus& there, const Destination& to) {
  if (there.kind == FileKind::kAbsent) return;
  throw Error(ErrorCode::kExists, "the destination exists already")
      .in_file(to.path)
      .hint("add --force to replace it as a whole, or choose another name");
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

void finish_writers(std::vector<std::unique_ptr<FileWriter>>& writers, bool sync) {
  for (const auto& writer : writers) {
    if (sync) writer->sync();
    writer->close();
  }
  writers.clear();
}

class LocalOutput final : public Output {
 public:
  LocalOutput(LocalDisk& fs, Destination to, const OutputOptions& options)
      : fs_(fs), to_(std::move(to)), options_(options) {
    try {
      make_temporary();
      staged_ = join_path(temporary_, to_.name);
      if (options_.folder) make_folder(staged_);
    } catch (...) {
      abort();  // The destructor of an unfinished object does not run.
      throw;
    }
  }
  ~LocalOutput() override { abort(); }

  FileWriter& file(const std::string& path, std::int64_t bytes) override {
    const std::scoped_lock lock(mutex_);
    const std::string full = options_.folder ? make_parents(path) : staged_;
    writers_.push_back(fs_.create(full));
    writers_.back()->allocate(bytes);
    return *writers_.back();
  }

  const std::string& staged() const override { return staged_; }

  void commit() override {
    finish_files();
    publish();
    abort();  // What is left of the sibling, and the old DST in it. Failing to remove that undoes nothing.
  }

  void abort() noexcept override {
    writers_.clear();
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

  /// The file's full path; makes the folders in it.
  std::string make_parents(const std::string& path) {
    std::string folder = staged_;
    std::size_t begin = 0;
    for (;;) {
      const std::size_t end = std::min(path.find('/', begin), path.size());
      const std::string part = path.substr(begin, end - begin);
      if (part.empty() || part == "." || part == "..") {
        throw Error(ErrorCode::kInvalidArgument, fmt::format("'{}' is no file name below the destination", path))
            .in_file(to_.path);
      }
      folder = join_path(folder, part);
      if (end == path.size()) return folder;
      if (!folders_.contains(folder)) make_folder(folder);
      begin = end + 1;
    }
  }

  void finish_files() {
    finish_writers(writers_, options_.sync);
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
      fs_.rename_new(staged_, to_.path);
      sync_parent_or([&] { fs_.rename_new(to_.path, staged_); });
    } else if (fs_.exchange(staged_, to_.path)) {
      sync_parent_or([&] { fs_.exchange(staged_, to_.path); });
    } else {
      replace_by_steps();
    }
  }

  bool exists() const { return fs_.status(to_.path).kind != FileKind::kAbsent; }

  void replace_by_steps() {
    const std::string aside = to_.sibling("old-");
    fs_.rename_new(to_.path, aside);
    try {
      fs_.rename_new(staged_, to_.path);
    } catch (...) {
      fs_.rename_new(aside, to_.path);
      throw;
    }
    sync_parent_or([&] {
      fs_.rename_new(to_.path, staged_);
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
  Destination to_;
  OutputOptions options_;
  std::string temporary_, staged_;
  std::shared_ptr<void> lock_;
  std::mutex mutex_;
  std::set<std::string> folders_;  ///< Made below the temporary one; each is opened up and synced once.
  std::vector<std::unique_ptr<FileWriter>> writers_;
};

}  // namespace

OutputPart::OutputPart(LocalDisk& fs, std::string staged, const OutputOptions& options)
    : fs_(fs), staged_(std::move(staged)), options_(options) {}

OutputPart::~OutputPart() = default;

FileWriter& OutputPart::file(const std::string& path) {
  writers_.push_back(fs_.open_existing(options_.folder ? join_path(staged_, path) : staged_));
  return *writers_.back();
}

void OutputPart::finish() { finish_writers(writers_, options_.sync); }

void check_destination(const LocalDisk& fs, const std::string& destination, const std::vector<std::string>& sources,
                       const OutputOptions& options) {
  const Destination to(destination);
  if (fs.status(to.parent).kind != FileKind::kFolder) {
    throw Error(ErrorCode::kResource, "the folder that shall hold the destination does not exist")
        .in_file(to.parent)
        .hint(fmt::format("mkdir -p '{}'", to.parent));
  }
  const FileStatus there = fs.status(to.path);
  for (const std::string& source : sources) check_overlap(fs, to, there, source);
  if (!options.force) check_absent(there, to);
}

std::unique_ptr<Output> begin_output(LocalDisk& fs, const std::string& destination, const OutputOptions& options) {
  check_destination(fs, destination, {}, options);
  const Destination to(destination);
  remove_left_siblings(fs, to);
  return std::make_unique<LocalOutput>(fs, to, options);
}

}  // namespace shard
