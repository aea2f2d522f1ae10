#include "tests/support/memory_disk.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <utility>

#include "libshard/core/error.h"
#include "libshard/io/file_writer.h"
#include "libshard/io/paths.h"
#include "libshard/io/source_store.h"

namespace shard {

struct Node;
using NodePtr = std::shared_ptr<Node>;

struct Node {
  bool is_folder = false;
  std::uint64_t inode = 0;
  std::int64_t modified_ns = 0;  ///< Counts all changes.
  std::vector<std::byte> content;
  std::map<std::string, NodePtr> entries;
  std::weak_ptr<void> lock;
};

/// Shared by all users of a disk. Functions require `mutex` to be locked.
struct MemoryState::Impl {
  mutable std::mutex mutex;
  static inline std::atomic<std::uint64_t> last_inode{
      0};  ///< Shared by all disks, so that files on two disks are different.
  static inline std::atomic<std::int64_t> changes{0};
  NodePtr root = std::make_shared<Node>(Node{true, ++last_inode, {}, {}, {}, {}});
  std::int64_t calls = 0, fail_call = -1, second_fail_call = -1;
  bool persistent = false, no_exchange = false;
  std::vector<std::string> log;
  std::atomic<int> open_files{0};

  /// Counts a call, and fails it if its number is the chosen one.
  void tick(ErrorCode code, const std::string& path, const std::string& line);
  NodePtr find(const std::string& path) const;  ///< Null if there is none.
  /// \throws Error kExists
  NodePtr add(Node& folder, const std::string& path, bool is_folder);
};

namespace {

/// The parts of a path. "." and ".." are resolved as text.
std::vector<std::string> parts_of(const std::string& path) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin <= path.size();) {
    const std::size_t end = std::min(path.find('/', begin), path.size());
    const std::string part = path.substr(begin, end - begin);
    if (part == ".." && !parts.empty()) parts.pop_back();
    if (!part.empty() && part != "." && part != "..") parts.push_back(part);
    begin = end + 1;
  }
  return parts;
}

std::string normal(const std::string& path) {
  std::string text;
  for (const std::string& part : parts_of(path)) text += '/' + part;
  return text.empty() ? "/" : text;
}

FileStatus status_from(const NodePtr& node) {
  if (node == nullptr) return {};
  return {node->is_folder ? FileKind::kFolder : FileKind::kFile,
          static_cast<std::int64_t>(node->content.size()),
          1,
          node->inode,
          0,
          node->modified_ns};
}

std::vector<std::string> names_in(const Node& folder) {
  std::vector<std::string> names;
  for (const auto& entry : folder.entries) names.push_back(entry.first);
  return names;
}

void collect(const std::string& folder, const Node& node, std::vector<std::string>& out) {
  for (const auto& [name, entry] : node.entries) {
    const std::string path = folder + "/" + name;
    out.push_back(path);
    collect(path, *entry, out);
  }
}

[[noreturn]] void fail(ErrorCode code, const std::string& path, const std::string& what) {
  throw Error(code, what).in_file(path);
}

using Impl = MemoryState::Impl;
using StatePtr = std::shared_ptr<MemoryState>;

/// Counts as open during its lifetime.
class Handle {
 public:
  Handle(StatePtr state, NodePtr node, std::string path)
      : state_(std::move(state)), node_(std::move(node)), path_(std::move(path)) {
    ++impl().open_files;
  }
  ~Handle() { --impl().open_files; }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;

  Impl& impl() const { return *state_->impl; }
  Node& node() const { return *node_; }
  const std::string& path() const { return path_; }

 private:
  StatePtr state_;
  NodePtr node_;
  std::string path_;
};

class MemoryReader final : public RandomReader {
 public:
  MemoryReader(StatePtr state, NodePtr node, const std::string& path)
      : handle_(std::move(state), node, path), status_(status_from(node)) {
    name_ = path;
  }

  void read_at(std::int64_t offset_bytes, std::span<std::byte> out) const override {
    const std::scoped_lock lock(handle_.impl().mutex);
    handle_.impl().tick(ErrorCode::kNotFound, name_, fmt::format("read {} {} {}", name_, offset_bytes, out.size()));
    const std::vector<std::byte>& content = handle_.node().content;
    const auto from = static_cast<std::size_t>(offset_bytes);
    if (from > content.size() || out.size() > content.size() - from) {
      throw file_too_short(name_, std::ssize(content), static_cast<std::int64_t>(from + out.size()));
    }
    std::copy_n(content.begin() + offset_bytes, out.size(), out.begin());
  }

  std::int64_t size() const override { return status_.bytes; }
  FileIdentity identity() const override { return status_.identity(); }
  std::int64_t modified_ns() const override { return status_.modified_ns; }

 private:
  Handle handle_;
  const FileStatus status_;  ///< The status when it was opened.
};

class MemoryWriter final : public FileWriter {
 public:
  MemoryWriter(StatePtr state, NodePtr node, const std::string& path)
      : handle_(std::move(state), std::move(node), path) {}

  void write_at(std::int64_t offset_bytes, std::span<const std::byte> data) override {
    const std::scoped_lock lock(handle_.impl().mutex);
    tick(fmt::format("write {} {} {}", handle_.path(), offset_bytes, data.size()));
    std::vector<std::byte>& content = handle_.node().content;
    const std::size_t end = static_cast<std::size_t>(offset_bytes) + data.size();
    if (content.size() < end) content.resize(end);
    std::copy(data.begin(), data.end(), content.begin() + offset_bytes);
    handle_.node().modified_ns = ++Impl::changes;
  }
  void read_back(std::int64_t offset_bytes, std::span<std::byte> out) override {
    const std::scoped_lock lock(handle_.impl().mutex);
    tick(fmt::format("read_back {} {} {}", handle_.path(), offset_bytes, out.size()));
    const std::vector<std::byte>& content = handle_.node().content;
    if (offset_bytes + std::ssize(out) > std::ssize(content)) throw cannot_read_back().in_file(handle_.path());
    std::copy_n(content.begin() + offset_bytes, out.size(), out.begin());
  }
  void allocate(std::int64_t bytes) override {
    const std::scoped_lock lock(handle_.impl().mutex);
    tick(fmt::format("allocate {} {}", handle_.path(), bytes));
    handle_.node().content.resize(static_cast<std::size_t>(bytes));
  }
  void expect_sync() override {
    const std::scoped_lock lock(handle_.impl().mutex);
    handle_.impl().log.push_back(fmt::format("expect_sync {}", handle_.path()));  // Cannot fail.
  }
  void sync() override {
    const std::scoped_lock lock(handle_.impl().mutex);
    tick(fmt::format("sync {}", handle_.path()));
  }
  void close() override {
    const std::scoped_lock lock(handle_.impl().mutex);
    tick(fmt::format("close {}", handle_.path()));
  }

 private:
  void tick(const std::string& line) { handle_.impl().tick(ErrorCode::kResource, handle_.path(), line); }
  Handle handle_;
};

class MemoryFolder final : public LocalFolder {
 public:
  MemoryFolder(StatePtr state, NodePtr node, const std::string& path)
      : LocalFolder(path), state_(std::move(state)), node_(std::move(node)) {}

  FileStatus status() const override {
    const auto lock = begin("status", path());
    return status_from(node_);
  }
  bool is_private() const override { return true; }
  FileStatus status_of(const std::string& name) const override {
    const auto lock = begin("status", path_of(name));
    return status_from(entry(name));
  }
  std::vector<std::string> list() const override {
    const auto lock = begin("list", path());
    return names_in(*node_);
  }
  std::int64_t free_bytes() const override {
    const auto lock = begin("free_bytes", path());
    return std::int64_t{1} << 40;
  }

  std::unique_ptr<FileWriter> create(const std::string& name) override {
    const auto lock = begin("create", path_of(name));
    return std::make_unique<MemoryWriter>(state_, impl().add(*node_, path_of(name), false), path_of(name));
  }
  std::unique_ptr<FileWriter> open_existing(const std::string& name) override {
    const auto lock = begin("open_existing", path_of(name));
    const NodePtr node = entry(name);
    if (node == nullptr || node->is_folder) fail(ErrorCode::kResource, path_of(name), "no such file");
    return std::make_unique<MemoryWriter>(state_, node, path_of(name));
  }
  std::unique_ptr<LocalFolder> make_folder(const std::string& name) override {
    const auto lock = begin("make_folder", path_of(name));
    return std::make_unique<MemoryFolder>(state_, impl().add(*node_, path_of(name), true), path_of(name));
  }
  std::unique_ptr<LocalFolder> open_folder(const std::string& name) override {
    const auto lock = begin("open_folder", path_of(name));
    const NodePtr node = entry(name);
    if (node == nullptr || !node->is_folder) fail(ErrorCode::kResource, path_of(name), "no such folder");
    return std::make_unique<MemoryFolder>(state_, node, path_of(name));
  }

  void set_mode(std::optional<std::uint32_t>) override { begin("set_mode", path()); }
  void set_mode_of(const std::string& name, std::uint32_t, bool) override { begin("set_mode", path_of(name)); }
  void sync() override { begin("sync_folder", path()); }

  void rename_new(const std::string& name, LocalFolder& other, const std::string& new_name) override {
    auto& to = static_cast<MemoryFolder&>(other);
    const auto lock = begin("rename " + path_of(name), to.path_of(new_name));
    const NodePtr node = entry(name);
    if (node == nullptr) fail(ErrorCode::kResource, path_of(name), "no such file or folder");
    if (to.entry(new_name) != nullptr) fail(ErrorCode::kExists, to.path_of(new_name), "it exists already");
    to.node_->entries[new_name] = node;
    node_->entries.erase(name);
  }
  bool exchange(const std::string& name, LocalFolder& other, const std::string& other_name) override {
    auto& to = static_cast<MemoryFolder&>(other);
    const auto lock = begin("exchange " + path_of(name), to.path_of(other_name));
    if (impl().no_exchange) return false;
    if (entry(name) == nullptr || to.entry(other_name) == nullptr) {
      fail(ErrorCode::kResource, to.path_of(other_name), "no such file or folder");
    }
    std::swap(node_->entries[name], to.node_->entries[other_name]);
    return true;
  }
  bool link(const std::string& name, const std::string& new_name) override {
    const auto lock = begin("link " + path_of(name), path_of(new_name));
    const NodePtr file = entry(name);
    return file != nullptr && !file->is_folder && node_->entries.emplace(new_name, file).second;
  }
  void rename_over(const std::string& name, LocalFolder& other, const std::string& other_name) override {
    auto& to = static_cast<MemoryFolder&>(other);
    const auto lock = begin("rename " + path_of(name), to.path_of(other_name));
    const NodePtr node = entry(name);
    if (node == nullptr) fail(ErrorCode::kResource, path_of(name), "no such file or folder");
    to.node_->entries[other_name] = node;
    node_->entries.erase(name);
  }
  void remove_all(const std::string& name) override {
    const auto lock = begin("remove", path_of(name));
    node_->entries.erase(name);
  }
  void remove_folder(const std::string& name, LocalFolder& folder) override {
    const auto lock = begin("remove", path_of(name));
    const NodePtr& removed = static_cast<MemoryFolder&>(folder).node_;
    removed->entries.clear();
    if (entry(name) == removed) node_->entries.erase(name);
  }

  bool try_lock() override {
    const auto lock = begin("lock", path());
    if (!node_->lock.expired()) return false;
    lock_ = std::make_shared<Handle>(state_, node_, path());
    node_->lock = lock_;
    return true;
  }

 private:
  Impl& impl() const { return *state_->impl; }
  std::string path_of(const std::string& name) const { return join_path(path(), name); }
  NodePtr entry(const std::string& name) const {
    const auto found = node_->entries.find(name);
    return found == node_->entries.end() ? nullptr : found->second;
  }
  /// Counts the call, and excludes others until the lock is destroyed.
  std::unique_lock<std::mutex> begin(const std::string& what, const std::string& path) const {
    std::unique_lock lock(impl().mutex);
    impl().tick(ErrorCode::kResource, path, what + " " + path);
    return lock;
  }

  StatePtr state_;
  NodePtr node_;
  std::shared_ptr<Handle> lock_;
};

class MemoryDisk final : public LocalDisk {
 public:
  explicit MemoryDisk(StatePtr state) : state_(std::move(state)) {}

  FileStatus status(const std::string& path) const override {
    const std::scoped_lock lock(impl().mutex);
    impl().tick(ErrorCode::kNotFound, path, "status " + normal(path));
    return status_from(impl().find(path));
  }

  std::vector<std::string> list(const std::string& folder) const override {
    const std::scoped_lock lock(impl().mutex);
    impl().tick(ErrorCode::kNotFound, folder, "list " + normal(folder));
    const NodePtr node = impl().find(folder);
    if (node == nullptr || !node->is_folder) fail(ErrorCode::kNotFound, folder, "no such folder");
    return names_in(*node);
  }

  std::unique_ptr<RandomReader> open(const std::string& path) const override {
    const std::scoped_lock lock(impl().mutex);
    impl().tick(ErrorCode::kNotFound, path, "open " + normal(path));
    const NodePtr node = impl().find(path);
    if (node == nullptr) {
      throw Error(ErrorCode::kNotFound, "cannot open: no such file").in_file(path).of_kind(FindingKind::kMissingFile);
    }
    if (node->is_folder) {
      throw Error(ErrorCode::kNotFound, "cannot read a folder as a file")
          .in_file(path)
          .of_kind(FindingKind::kMissingFile);
    }
    return std::make_unique<MemoryReader>(state_, node, path);
  }

  std::unique_ptr<RandomReader> open_below(const std::string& folder, const std::string& relative) const override {
    const std::string inside = join_path("/", relative);
    if (relative.empty() || relative.front() == '/' || normal(inside) != inside) {
      fail(ErrorCode::kCorruption, folder,
           fmt::format("the file name '{}' points outside the checkpoint's folder", relative));
    }
    return open(join_path(folder, relative));
  }

  std::unique_ptr<LocalFolder> open_folder(const std::string& path) override {
    const std::scoped_lock lock(impl().mutex);
    impl().tick(ErrorCode::kResource, path, "open_folder " + normal(path));
    const NodePtr node = impl().find(path);
    if (node == nullptr || !node->is_folder) return nullptr;
    return std::make_unique<MemoryFolder>(state_, node, normal(path));
  }

  std::string resolved(const std::string& path) const override { return normal(path); }

  bool clone_range(const RandomReader&, std::int64_t, FileWriter&, std::int64_t, std::int64_t) override {
    return false;
  }

 private:
  Impl& impl() const { return *state_->impl; }

  StatePtr state_;
};

}  // namespace

void MemoryState::Impl::tick(ErrorCode code, const std::string& path, const std::string& line) {
  const std::int64_t call = calls++;
  log.push_back(line);
  if (fail_call >= 0 && (call == fail_call || call == second_fail_call || (persistent && call > fail_call))) {
    throw Error(code, fmt::format("injected failure of call {} ({})", call, line)).in_file(path);
  }
}

NodePtr MemoryState::Impl::find(const std::string& path) const {
  NodePtr node = root;
  for (const std::string& part : parts_of(path)) {
    const auto entry = node->entries.find(part);
    if (entry == node->entries.end()) return nullptr;
    node = entry->second;
  }
  return node;
}

NodePtr MemoryState::Impl::add(Node& folder, const std::string& path, bool is_folder) {
  const auto [entry, is_new] = folder.entries.try_emplace(base_name(path));
  if (!is_new) throw Error(ErrorCode::kExists, "it exists already").in_file(path);
  entry->second = std::make_shared<Node>(Node{is_folder, ++last_inode, {}, {}, {}, {}});
  return entry->second;
}

MemoryState::MemoryState() : impl(std::make_unique<Impl>()) {}
MemoryState::~MemoryState() = default;

void MemoryState::fail_at(std::int64_t call, bool persistent) {
  const std::scoped_lock lock(impl->mutex);
  impl->fail_call = call;
  impl->persistent = persistent;
  impl->second_fail_call = -1;
}

void MemoryState::fail_also_at(std::int64_t call) {
  const std::scoped_lock lock(impl->mutex);
  impl->second_fail_call = call;
}

std::int64_t MemoryState::calls() const {
  const std::scoped_lock lock(impl->mutex);
  return impl->calls;
}

std::vector<std::string> MemoryState::log() const {
  const std::scoped_lock lock(impl->mutex);
  return impl->log;
}

std::vector<std::string> MemoryState::paths() const {
  const std::scoped_lock lock(impl->mutex);
  std::vector<std::string> all;
  collect("", *impl->root, all);
  std::sort(all.begin(), all.end());
  return all;
}

std::vector<std::byte> MemoryState::content(const std::string& path) const {
  const std::scoped_lock lock(impl->mutex);
  const NodePtr node = impl->find(path);
  if (node == nullptr || node->is_folder) throw Error(ErrorCode::kNotFound, "no such file").in_file(path);
  return node->content;
}

void MemoryState::put(const std::string& path, std::span<const std::byte> content) {
  const std::scoped_lock lock(impl->mutex);
  NodePtr node = impl->root;
  for (const std::string& part : parts_of(path)) {
    NodePtr& entry = node->entries[part];
    if (entry == nullptr) entry = std::make_shared<Node>(Node{true, ++impl->last_inode, {}, {}, {}, {}});
    node = entry;
  }
  node->is_folder = false;
  node->content.assign(content.begin(), content.end());
  node->modified_ns = ++Impl::changes;
}

int MemoryState::open_files() const { return impl->open_files; }

void MemoryState::without_exchange(bool missing) {
  const std::scoped_lock lock(impl->mutex);
  impl->no_exchange = missing;
}

std::unique_ptr<LocalDisk> make_memory_disk(std::shared_ptr<MemoryState> state) {
  return std::make_unique<MemoryDisk>(std::move(state));
}

}  // namespace shard
