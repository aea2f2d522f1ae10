#include "libshard/io/local_output.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <sstream>

#include "libshard/core/bytes.h"
#include "libshard/core/checked.h"
#include "libshard/core/error.h"
#include "libshard/core/parallel.h"
#include "libshard/io/destination.h"
#include "libshard/io/file_writer.h"
#include "libshard/io/local_left.h"
#include "libshard/io/paths.h"

namespace shard {

namespace {

/// The cause of a failed commit, with the name that the old destination keeps because it could not be put back.
Error kept_after(const std::exception_ptr& cause, const LocalFolder& parent, const std::string& aside) {
  const std::string place = join_path(parent.path(), aside);
  return as_error(cause).hint(fmt::format("the old output could not be put back: it is {}", place));
}

Error not_restored(const LocalFolder& parent, const Destination& to, const std::string& aside) {
  const Error cause = Error(ErrorCode::kResource, "cannot put the old output back").in_file(to.path);
  return kept_after(std::make_exception_ptr(cause), parent, aside);
}

/// The commit moves the existing destination aside, as `.NAME.shardctl-old-XXXXXXXX`. It is removed when the output is
/// destroyed.
class LocalRemoval final : public Output {
 public:
  LocalRemoval(std::shared_ptr<LocalFolder> parent, Destination to, bool sync)
      : parent_(std::move(parent)), to_(std::move(to)), sync_(sync) {}
  ~LocalRemoval() override { abort(); }

  std::vector<std::byte> token() const override { return {}; }  ///< No rank writes a part.
  void prepare() override {}
  void commit() override;
  void take_back() override;
  void abort() noexcept override;

 private:
  /// \returns false if that failed; then the old destination keeps its other name
  bool move_back();

  const std::shared_ptr<LocalFolder> parent_;
  const Destination to_;
  const bool sync_;
  std::string aside_;  ///< Empty: nothing was moved.
};

void LocalRemoval::commit() {
  if (parent_->status_of(to_.name).kind == FileKind::kAbsent) return;  // It was removed by a different process.
  const std::string aside = to_.sibling("old-");
  parent_->rename_new(to_.name, *parent_, aside);
  aside_ = aside;
  try {
    if (sync_) parent_->sync();
  } catch (...) {
    if (move_back()) throw;
    throw kept_after(std::current_exception(), *parent_, aside);
  }
}

bool LocalRemoval::move_back() {
  const std::string aside = std::exchange(aside_, {});  // If this fails, nothing may remove it.
  try {
    if (!aside.empty()) parent_->rename_new(aside, *parent_, to_.name);
    return true;
  } catch (...) {
    return false;
  }
}

void LocalRemoval::take_back() {
  const std::string aside = aside_;
  if (!move_back()) throw not_restored(*parent_, to_, aside);
  if (sync_) parent_->sync();
}

void LocalRemoval::abort() noexcept {
  if (aside_.empty()) return;
  try {
    parent_->remove_all(aside_);
  } catch (...) {  // It is no longer at the destination.
  }
  aside_.clear();
}

// Parts of a local output, and the token by which other ranks find it.

/// Contents of a token: the sibling's folder and the files that are staged in it.
struct Staged {
  std::string sibling;  ///< Its name beside DST.
  FileStatus status;
  bool is_folder = true;     ///< The future DST.
  bool is_taken_up = false;  ///< An earlier run began it, so files may exist already.

  std::vector<std::byte> token() const;
  /// One folder has different device numbers on different hosts. \throws Error kPeer  a token without a place
  static Staged of_token(std::span<const std::byte> token, std::uint64_t device_of_parent);
};

/// True if a file of a disk has more than one name (hard links).
bool has_other_names(const FileWriter& file) {
  struct stat info {};
  return file.descriptor() >= 0 && ::fstat(file.descriptor(), &info) == 0 && info.st_nlink > 1;
}

/// The error for a file with several names. Writing to it would change the same file elsewhere. No run of this program
/// leaves one.
Error linked(const LocalFolder& folder, const std::string& name) {
  return Error(ErrorCode::kExists, "cannot resume: a file of the interrupted run has a second name (a hard link)")
      .in_file(join_path(folder.path(), name))
      .hint("start over without resuming, which removes the files of the interrupted run");
}

/// The folder at `path` below `folder`. The path is empty or ends with a slash.
std::unique_ptr<LocalFolder> open_below(std::unique_ptr<LocalFolder> folder, const std::string& path) {
  std::size_t begin = 0;
  for (std::size_t end = path.find('/'); end != std::string::npos; end = path.find('/', begin)) {
    folder = folder->open_folder(path.substr(begin, end - begin));
    begin = end + 1;
  }
  return folder;
}

class LocalPart final : public OutputPart {
 public:
  LocalPart(std::unique_ptr<LocalFolder> sibling, std::string name, const Staged& staged, bool sync)
      : sibling_(std::move(sibling)),
        name_(std::move(name)),
        is_folder_(staged.is_folder),
        is_taken_up_(staged.is_taken_up),
        sync_(sync) {}

  FileWriter& create(const OutputFile& file) override {
    const auto make = [this](LocalFolder& folder, const std::string& name) {
      if (!is_taken_up_) return folder.create(name);
      if (folder.status_of(name).kind != FileKind::kFile) return folder.create(name);
      std::unique_ptr<FileWriter> there = folder.open_existing(name);
      if (has_other_names(*there)) throw linked(folder, name);
      return there;
    };
    FileWriter& writer = keep(file.is_beside ? make(*sibling_, name_ + file.path) : at(file.path, make));
    writer.allocate(file.bytes);
    return writer;
  }

  FileWriter& open(const std::string& path) override {
    return keep(at(path, [](LocalFolder& folder, const std::string& name) { return folder.open_existing(name); }));
  }

  void finish() override {
    for_each_index(writers_.size(), sibling_->requests_at_once(), [this](std::size_t i) {
      if (sync_) writers_[i]->sync();
      writers_[i]->close();
    });
    writers_.clear();
  }

  std::unique_ptr<FileWriter> create_note(const std::string& name) override {
    return sibling_->create(note_file(name_, name));
  }
  std::vector<OutputNote> notes() override {
    return is_taken_up_ ? read_notes(*sibling_, name_, kLargestNote) : std::vector<OutputNote>();
  }

 private:
  FileWriter& keep(std::unique_ptr<FileWriter> writer) {
    if (sync_) writer->expect_sync();
    writers_.push_back(std::move(writer));
    return *writers_.back();
  }
  /// Calls `open` with the folder that contains the file, and its name there.
  template <class Open>
  std::unique_ptr<FileWriter> at(const std::string& path, const Open& open) {
    if (!is_folder_) return open(*sibling_, name_);
    const std::size_t name = path.rfind('/') + 1;
    return open(folder_at(path.substr(0, name)), path.substr(name));
  }

  /// The folder at `path` below DST, which is empty or ends with a slash. Files of one folder follow one another, so
  /// the last one stays open.
  LocalFolder& folder_at(const std::string& path) {
    if (folder_ != nullptr && folder_path_ == path) return *folder_;
    folder_ = open_below(sibling_->open_folder(name_), path);
    folder_path_ = path;
    return *folder_;
  }

  const std::unique_ptr<LocalFolder> sibling_;
  const std::string name_;
  const bool is_folder_, is_taken_up_, sync_;
  std::string folder_path_;  ///< The path below DST of `folder_`, which was opened last.
  std::unique_ptr<LocalFolder> folder_;
  std::vector<std::unique_ptr<FileWriter>> writers_;
};

/// The name of this host. Never empty.
std::string this_host() {
  std::array<char, 256> name{"@"};
  ::gethostname(name.data() + 1, name.size() - 2);
  return name.data();
}

std::vector<std::byte> Staged::token() const {
  return to_bytes(fmt::format("{} {} {} {} {}\n{}", int{is_folder}, int{is_taken_up}, status.device, status.inode,
                              this_host(), sibling));
}

Staged Staged::of_token(std::span<const std::byte> token, std::uint64_t device_of_parent) {
  std::istringstream text(std::string(as_text(token)));
  Staged staged;
  std::string host;
  text >> staged.is_folder >> staged.is_taken_up >> staged.status.device >> staged.status.inode >> host;
  text.ignore();
  std::getline(text, staged.sibling, '\0');
  if (staged.sibling.empty()) throw Error(ErrorCode::kPeer, "cannot find the output: rank 0 sent an empty token");
  if (host != this_host()) staged.status.device = device_of_parent;
  staged.status.kind = FileKind::kFolder;
  return staged;
}

void fail_swapped(const LocalFolder& parent, const std::string& sibling) {
  throw Error(ErrorCode::kResource, "cannot write: the folder of the staged output was moved or replaced")
      .in_file(join_path(parent.path(), sibling))
      .because("another process renamed it in its parent folder while the output was being written");
}

constexpr const char* kOldCompanion = "old-companion";  ///< A name in the sibling, with which it is removed.

[[noreturn]] void fail_companion(const Destination& to, const std::string& companion) {
  throw Error(ErrorCode::kExists, "cannot write: a manifest for another file of this name exists")
      .in_file(join_path(to.parent, companion))
      .suggest(Remedy::kReplaceDestination);
}

/// Uses two open folders for everything: the sibling, and the folder that contains it and DST.
class LocalOutput final : public Output {
 public:
  LocalOutput(std::shared_ptr<LocalFolder> parent, const Destination& to, const LocalOutputOptions& options,
              std::span<const OutputFile> files, bool is_folder, LocalLeft* left)
      : parent_(std::move(parent)), to_(to), options_(options), is_folder_(is_folder), is_taken_up_(left != nullptr) {
    for (const OutputFile& file : files) {
      if (file.is_beside) companion_ = to.name + file.path;
    }
    try {
      if (left != nullptr) {
        sibling_name_ = left->name();
        sibling_ = left->take_folder();
      } else {
        make_sibling();
      }
      staged_ = sibling_->status();
      if (is_folder) make_folders(files);
    } catch (...) {
      abort();  // The destructor of an incomplete object does not run.
      throw;
    }
  }
  ~LocalOutput() override { abort(); }

  std::vector<std::byte> token() const override {
    return Staged{sibling_name_, staged_, is_folder_, is_taken_up_}.token();
  }

  void prepare() override {
    if (!is_same(parent_->status_of(sibling_name_), staged_)) fail_swapped(*parent_, sibling_name_);
    const FileStatus old = parent_->status_of(to_.name);
    if (!options_.force) check_absent(old, to_);
    find_old_companion(old);
    if (!options_.force && !old_companion_.empty()) fail_companion(to_, old_companion_);
    finish_modes(old);
    const bool had_notes = remove_notes(*sibling_, to_.name);  // No later run resumes a part of a committed output.
    if (options_.sync) {
      for (const auto& [path, folder] : folders_) folder->sync();
      if (had_notes) sibling_->sync();
    }
    is_prepared_ = true;
  }

  void commit() override {
    if (!is_prepared_) prepare();
    const std::unique_ptr<LocalFolder> lock = has_locks_ ? lock_commits(*parent_) : nullptr;
    if (options_.force) find_old_companion(parent_->status_of(to_.name));  // A different run may have changed it.
    publish(options_.force && parent_->status_of(to_.name).kind != FileKind::kAbsent);
  }

  void take_back() override {
    const bool is_undone = undo();
    abort();
    if (!is_undone) throw not_restored(*parent_, to_, old_);
    if (options_.sync) parent_->sync();
  }

  void leave() noexcept override { folders_.clear(), sibling_.reset(); }

  /// After a commit, this removes the rest of the sibling and the old DST. If that fails, the commit remains valid.
  void abort() noexcept override {
    folders_.clear();
    undo_.clear();
    if (sibling_ == nullptr) return;
    try {
      if (is_old_aside_) parent_->remove_all(old_);
    } catch (...) {  // The new content is in position. Only the old one remains.
    }
    try {
      parent_->remove_folder(sibling_name_, *sibling_);
    } catch (...) {  // A later run removes it.
    }
    sibling_.reset();
  }

 private:
  void make_sibling() {
    constexpr int kAttempts = 4;  // A different run may treat a folder that is not locked yet as an abandoned one.
    for (int attempt = 0; attempt < kAttempts; ++attempt) {
      if (sibling_ != nullptr) parent_->remove_folder(sibling_name_, *sibling_);
      sibling_name_ = to_.sibling();
      sibling_ = parent_->make_folder(sibling_name_);
      has_locks_ = sibling_ != nullptr && sibling_->try_lock();
      if (has_locks_) return;
    }  // There is no lock because the file system has none, so no other run can take it either.
    if (sibling_ == nullptr) fail_swapped(*parent_, sibling_name_);
  }

  /// Creates the folder `name` in `above`, with the path `path` below DST.
  LocalFolder& make_folder(LocalFolder& above, const std::string& name, const std::string& path) {
    const bool is_there = is_taken_up_ && above.status_of(name).kind == FileKind::kFolder;
    std::unique_ptr<LocalFolder> made = is_there ? above.open_folder(name) : above.make_folder(name);
    if (made == nullptr) fail_swapped(*parent_, sibling_name_);
    return *(folders_[path] = std::move(made));
  }

  void make_folders(std::span<const OutputFile> files) {
    LocalFolder& root = make_folder(*sibling_, to_.name, "");
    for (const OutputFile& file : files) make_parents(root, file.path);
  }

  /// Creates the folders in a file's path.
  void make_parents(LocalFolder& root, const std::string& path) {
    LocalFolder* above = &root;
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
      const std::string folder = path.substr(0, end);
      const auto known = folders_.find(folder);
      above = known != folders_.end() ? known->second.get() : &make_folder(*above, part, folder);
      begin = end + 1;
    }
  }

  /// Finds the existing companion of file DST. `old` is DST's status.
  void find_old_companion(const FileStatus& old) {
    old_companion_ = to_.name + std::string(kCompanionSuffix);
    const bool has_none = is_folder_ && old.kind != FileKind::kFile;
    if (has_none || parent_->status_of(old_companion_).kind == FileKind::kAbsent) old_companion_.clear();
  }

  /// Copies the modes of replaced entries: DST itself, and the folders and files of the same paths in a folder.
  void finish_modes(const FileStatus& old) {
    if (!is_folder_ && old.kind == FileKind::kFile) keep_mode(*sibling_, to_.name, old);
    for (const auto& [path, folder] : folders_) {
      std::optional<std::uint32_t> mode;
      if (old.kind == FileKind::kFolder) mode = keep_modes_below(*folder, path);
      folder->set_mode(path.empty() && old.kind == FileKind::kFolder ? old.mode : mode);
    }
  }

  /// Copies the modes of the files in the old folder at `path` below DST. \returns that folder's mode. Empty if there
  /// is no such folder or this process may not read it.
  std::optional<std::uint32_t> keep_modes_below(LocalFolder& staged, const std::string& path) {
    try {
      const auto replaced = open_below(parent_->open_folder(to_.name), path.empty() ? path : path + '/');
      for (const std::string& name : replaced->list()) {
        const FileStatus old = replaced->status_of(name);
        if (old.kind == FileKind::kFile) keep_mode(staged, name, old);
      }
      return replaced->status().mode;
    } catch (const Error&) {
      return std::nullopt;
    }
  }

  void keep_mode(LocalFolder& staged, const std::string& name, const FileStatus& old) {
    const FileStatus made = staged.status_of(name);
    if (made.kind == FileKind::kFile && made.mode != old.mode) staged.set_mode_of(name, old.mode, options_.sync);
  }

  /// Makes the new content visible. A failure after that rolls back, so that an error always means the old state. A
  /// companion is removed before its file is replaced, and created after it, so that it never belongs to another.
  void publish(bool replaces) {
    try {
      if (!old_companion_.empty()) {
        step([this] { parent_->rename_new(old_companion_, *sibling_, kOldCompanion); },
             [this] { sibling_->rename_new(kOldCompanion, *parent_, old_companion_); });
      }
      replaces ? replace() : move_in(to_.name);
      if (!companion_.empty()) move_in(companion_);
      if (options_.sync) parent_->sync();
    } catch (...) {
      if (undo()) throw;
      throw kept_after(std::current_exception(), *parent_, old_);
    }
  }

  void replace() {
    old_ = to_.sibling("old-");
    if (sibling_->exchange(to_.name, *parent_, to_.name)) {
      undo_.emplace_back([this] { swap_back(); });
      return;
    }
    if (!is_folder_ && parent_->link(to_.name, old_)) {
      undo_.emplace_back([this] { parent_->remove_all(old_); });
      step([&] { sibling_->rename_over(to_.name, *parent_, to_.name); },
           [this] { parent_->rename_over(old_, *parent_, to_.name); });
    } else {
      step([&] { parent_->rename_new(to_.name, *parent_, old_); },
           [this] { parent_->rename_new(old_, *parent_, to_.name); });
      move_in(to_.name);
    }
    is_old_aside_ = true;
  }

  void swap_back() {
    try {
      sibling_->exchange(to_.name, *parent_, to_.name);
    } catch (...) {
      sibling_->rename_new(to_.name, *parent_, old_);  // The sibling will be removed.
      throw;
    }
  }

  void move_in(const std::string& name) {
    step([&] { sibling_->rename_new(name, *parent_, name); },
         [this, name] { parent_->rename_new(name, *sibling_, name); });
  }

  template <class Do>
  void step(const Do& forward, std::function<void()> back) {
    forward();
    undo_.push_back(std::move(back));
  }

  /// Undoes the last step first. \returns false if one failed; then the old DST keeps the name `old_`, and nothing
  /// removes it
  bool undo() {
    is_old_aside_ = false;
    try {
      while (!undo_.empty()) {
        const std::function<void()> back = std::move(undo_.back());
        undo_.pop_back();
        back();
      }
      return true;
    } catch (...) {
      undo_.clear();
      return false;
    }
  }

  const std::shared_ptr<LocalFolder> parent_;
  const Destination to_;
  const LocalOutputOptions options_;
  const bool is_folder_, is_taken_up_;
  std::string sibling_name_;
  std::unique_ptr<LocalFolder> sibling_;
  FileStatus staged_;  ///< The sibling's identity.
  bool is_prepared_ = false, has_locks_ = true;
  std::string companion_, old_companion_;    ///< Names next to DST. Empty if there is none.
  std::vector<std::function<void()>> undo_;  ///< Steps that roll back the commit, from the last to the first.
  std::string old_;                          ///< The old DST's name beside the new one, if it has one.
  bool is_old_aside_ = false;                ///< The old DST has that name and is to be removed at the end.
  std::map<std::string, std::unique_ptr<LocalFolder>> folders_;  ///< By path below DST; "" is DST.
};

/// The entry on the way to a folder that is not a folder; empty if the way only ends early.
std::string entry_in_the_way(const SourceStore& disk, std::string path) {
  FileKind kind = disk.status(path).kind;
  while (kind == FileKind::kAbsent && parent_path(path) != path) {
    path = parent_path(path);
    kind = disk.status(path).kind;
  }
  return kind == FileKind::kAbsent || kind == FileKind::kFolder ? "" : path;
}

std::unique_ptr<LocalFolder> open_parent(LocalDisk& disk, const Destination& to) {
  std::unique_ptr<LocalFolder> parent = disk.open_folder(to.parent);
  if (parent != nullptr) return parent;
  if (const std::string entry = entry_in_the_way(disk, to.parent); !entry.empty()) {
    throw Error(ErrorCode::kResource, "cannot write the destination: this is not a folder").in_file(entry);
  }
  const bool is_plain = to.parent.find('\'') == std::string::npos && !to.parent.starts_with('-');  // For a shell.
  throw Error(ErrorCode::kResource, "cannot write the destination: its parent folder does not exist")
      .in_file(to.parent)
      .hint(is_plain ? fmt::format("mkdir -p '{}'", to.parent) : "create this folder first");
}

class LocalStore final : public OutputStore {
 public:
  LocalStore(LocalDisk& disk, const std::string& destination, const std::vector<std::string>& sources,
             const LocalOutputOptions& options)
      : to_(destination), options_(options), parent_(open_parent(disk, to_)) {
    const FileStatus entry = parent_->status_of(to_.name);
    for (const std::string& source : sources) check_overlap(disk, to_, source);
    check_replaceable(disk, to_);
    if (entry.kind != FileKind::kAbsent) check_no_mount_point(*parent_, to_);
    if (!options_.force) check_absent(entry, to_);
    if (entry.kind == FileKind::kFolder) check_mounts(disk, *parent_, to_, sources);
  }

  std::int64_t free_bytes() const override { return parent_->free_bytes(); }

  std::string place() const override {
    const FileStatus folder = parent_->status();
    return fmt::format("{} {} {} {}", this_host(), folder.device, folder.inode, to_.name);
  }

  std::unique_ptr<LeftOutput> find_left() override { return find_left_sibling(*parent_, to_); }

  std::unique_ptr<Output> begin(std::span<const OutputFile> files, bool is_folder,
                                std::unique_ptr<LeftOutput> left) override {
    if (to_.name.size() > NAME_MAX) {
      throw Error(ErrorCode::kResource, "cannot write: file name too long")
          .in_file(to_.path)
          .expected(fmt::format("at most {} bytes", NAME_MAX))
          .found(fmt::format("{} bytes", to_.name.size()));
    }
    remove_left_siblings(*parent_, to_);
    if (left == nullptr) check_space(files);
    return std::make_unique<LocalOutput>(parent_, to_, options_, files, is_folder, static_cast<LocalLeft*>(left.get()));
  }

  std::unique_ptr<Output> begin_removal() override {
    remove_left_siblings(*parent_, to_);
    const FileStatus there = parent_->status_of(to_.name);
    if (!options_.force) check_absent(there, to_);
    if (there.kind == FileKind::kAbsent) return nullptr;
    return std::make_unique<LocalRemoval>(parent_, to_, options_.sync);
  }

  std::unique_ptr<OutputPart> part(std::span<const std::byte> token) override {
    const Staged staged = Staged::of_token(token, parent_->status().device);
    if (parent_->status_of(staged.sibling).kind == FileKind::kAbsent) fail_elsewhere(to_);
    std::unique_ptr<LocalFolder> sibling = parent_->open_folder(staged.sibling);
    if (!is_same(sibling->status(), staged.status)) fail_swapped(*parent_, staged.sibling);
    return std::make_unique<LocalPart>(std::move(sibling), to_.name, staged, options_.sync);
  }

 private:
  /// Called after the remains of killed runs are removed.
  void check_space(std::span<const OutputFile> files) const {
    std::int64_t needed = 0;
    for (const OutputFile& file : files) needed = checked_add(needed, file.bytes);
    const std::int64_t free = free_bytes();
    if (free >= needed) return;
    throw Error(ErrorCode::kResource,
                fmt::format("the output needs {} bytes, but the disk has only {} free", needed, free))
        .in_file(to_.path)
        .expected(needed)
        .found(free)
        .hint("free some space, or write to another disk");
  }

  const Destination to_;
  const LocalOutputOptions options_;
  const std::shared_ptr<LocalFolder> parent_;
};

}  // namespace

std::unique_ptr<OutputStore> local_output(LocalDisk& disk, const std::string& destination,
                                          const std::vector<std::string>& sources, const LocalOutputOptions& options) {
  return std::make_unique<LocalStore>(disk, destination, sources, options);
}

}  // namespace shard
