#include "libshard/io/watched_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <span>
#include <utility>

#include "libshard/core/error.h"
#include "libshard/core/parallel.h"
#include "libshard/io/forwarding_reader.h"
#include "libshard/io/paths.h"
#include "libshard/io/url_path.h"

namespace shard {

namespace {

constexpr std::size_t kAhead = 64;  ///< Files of a folder that are asked about at one time; fewer than are kept.
constexpr std::int64_t kFrontBytes = 64 << 10, kEndBytes = 16 << 10;  ///< Read when a file is opened.

/// The value of `key` in `known`, which `ask` returns the first time. Concurrent callers all receive the first answer.
template <class Value, class Ask>
Value asked_once(HashMap<std::string, Value>& known, const std::string& key, std::mutex& mutex, const Ask& ask) {
  {
    const std::scoped_lock lock(mutex);
    if (const Value* const value = known.find(key); value != nullptr) return *value;
  }
  Value answer = ask();
  const std::scoped_lock lock(mutex);
  return known.try_emplace(key, std::move(answer)).value;
}

/// The folder of a path, with a slash at its end; empty for a name without one.
std::string folder_before(const std::string& path) { return path.substr(0, path.rfind('/') + 1); }

/// The part of a name from its last dot on, by which files of one kind are alike.
std::string_view suffix_of(std::string_view path) {
  const std::string_view name = path.substr(path.rfind('/') + 1);
  const std::size_t dot = name.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : name.substr(dot);
}

/// Reads through a file that others may read too.
class SharedFile final : public ForwardingReader {
 public:
  using ForwardingReader::ForwardingReader;
  std::span<const std::byte> in_memory(std::int64_t offset_bytes, std::size_t bytes) const override {
    return file_->in_memory(offset_bytes, bytes);
  }
  int streams_at_once() const override { return file_->streams_at_once(); }
  void stream(std::int64_t offset_bytes, std::int64_t bytes, const ByteTaker& take) const override {
    file_->stream(offset_bytes, bytes, take);
  }
};

/// A file whose first and last bytes are in memory from the start.
class EndsInMemory final : public ForwardingReader {
 public:
  explicit EndsInMemory(std::unique_ptr<RandomReader> file) : ForwardingReader(std::move(file)) {
    const std::int64_t bytes = file_->size();
    const bool is_whole = bytes <= kFrontBytes + kEndBytes;
    front_.resize(static_cast<std::size_t>(is_whole ? bytes : kFrontBytes));
    if (!is_whole) end_.resize(static_cast<std::size_t>(kEndBytes));
    const std::array ends{RangedRead{0, front_}, RangedRead{bytes - std::ssize(end_), end_}};
    file_->read_many(std::span(ends).first(is_whole ? 1 : 2));
  }
  void read_at(std::int64_t offset_bytes, std::span<std::byte> out) const override {
    if (!copy({offset_bytes, out})) file_->read_at(offset_bytes, out);
  }
  void read_many(std::span<const RangedRead> ranges) const override {
    std::vector<RangedRead> others;
    std::ranges::copy_if(ranges, std::back_inserter(others), [this](const RangedRead& range) { return !copy(range); });
    file_->read_many(others);
  }
  std::int64_t held_bytes() const override { return std::ssize(front_) + std::ssize(end_); }

 private:
  /// \returns false if the bytes are not in memory.
  bool copy(const RangedRead& range) const {
    const auto take = [&](const std::vector<std::byte>& bytes, std::int64_t begin) {
      if (range.offset_bytes < begin || range.offset_bytes - begin + std::ssize(range.out) > std::ssize(bytes)) {
        return false;
      }
      std::copy_n(bytes.begin() + (range.offset_bytes - begin), range.out.size(), range.out.begin());
      return true;
    };
    return take(front_, 0) || take(end_, size() - std::ssize(end_));
  }

  std::vector<std::byte> front_, end_;
};

}  // namespace

FileStatus WatchedStore::status(const std::string& path) const {
  {
    const std::scoped_lock lock(mutex_);
    if (const FileStatus* const known = statuses_.find(path); known != nullptr) return *known;
    if (is_missing(path)) return {};
    const OpenedPtr* const opened = opened_.find(path);
    if (opened != nullptr && (*opened)->is_known) {
      const Facts& facts = (*opened)->facts;
      return {.kind = FileKind::kFile,
              .bytes = facts.bytes,
              .device = facts.identity.device,
              .inode = facts.identity.inode,
              .modified_ns = facts.modified_ns};
    }
  }
  ask_ahead(Question::kStatus, path);
  return asked_once(statuses_, path, mutex_, [&] { return inner_.status(path); });
}

/// Whether the path's folder was listed without it. A list of a folder on the web has only the names that are known so
/// far. \pre mutex_ is locked
bool WatchedStore::is_missing(const std::string& path) const {
  if (is_url(path)) return false;
  const std::string folder = folder_before(path);
  const std::string_view name = std::string_view(path).substr(folder.size());
  if (name.empty() || name == "." || name == "..") return false;
  const std::vector<std::string>* const names = lists_.find(folder);
  return names != nullptr && !std::ranges::binary_search(*names, name);
}

std::vector<std::string> WatchedStore::list(const std::string& folder) const {
  return asked_once(lists_, join_path(folder, ""), mutex_, [&] { return inner_.list(folder); });
}

std::unique_ptr<RandomReader> WatchedStore::open(const std::string& path) const {
  ask_ahead(Question::kContent, path);
  return open_once(path, &Opened::file, [&] { return inner_.open(path); });
}

/// A name without folders leads to the same file as the whole path.
std::unique_ptr<RandomReader> WatchedStore::open_below(const std::string& folder, const std::string& relative) const {
  const std::string path = join_path(folder, relative);
  const bool has_folders = relative.find('/') != std::string::npos;
  if (!has_folders) ask_ahead(Question::kContent, path);
  return open_once(path, has_folders ? &Opened::below : &Opened::file,
                   [&] { return inner_.open_below(folder, relative); });
}

WatchedStore::OpenedPtr WatchedStore::entry_of(const std::string& path) const {
  const std::scoped_lock lock(mutex_);
  OpenedPtr& entry = opened_[path];
  if (entry == nullptr) entry = std::make_shared<Opened>();
  return entry;
}

std::unique_ptr<RandomReader> WatchedStore::open_once(const std::string& path,
                                                      std::weak_ptr<const RandomReader> Opened::*place,
                                                      const Opener& opener) const {
  const OpenedPtr entry = entry_of(path);
  const std::scoped_lock opening(entry->mutex);
  if (std::shared_ptr<const RandomReader> open = ((*entry).*place).lock()) {
    return std::make_unique<SharedFile>(std::move(open));
  }
  std::unique_ptr<RandomReader> opened = open_new(opener);
  const Facts now{opened->identity(), opened->size(), opened->modified_ns()};
  if (entry->is_known) compare(path, entry->facts, now);
  if (opened->requests_at_once() > 1 && !is_url(path)) {  // Stores of URLs keep what was read, and ask ahead.
    requests_ = std::max(requests_.load(), opened->requests_at_once());
    opened = std::make_unique<EndsInMemory>(std::move(opened));
  }
  std::shared_ptr<const RandomReader> file = std::move(opened), released;
  (*entry).*place = file;
  const std::scoped_lock lock(mutex_);
  if (!std::exchange(entry->is_known, true)) entry->facts = now;
  kept_.push_back(file);
  if (kept_.size() > kMostKept) {
    released = std::move(kept_.front());
    kept_.pop_front();
  }
  return std::make_unique<SharedFile>(std::move(file));
}

/// Too many open files: those that are only kept are closed first.
std::unique_ptr<RandomReader> WatchedStore::open_new(const Opener& opener) const {
  try {
    return opener();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kResource) throw;
  }
  release_kept();
  return opener();
}

/// Closes the files that are only kept. If another thread is closing them, waits until it has.
void WatchedStore::release_kept() const {
  const std::scoped_lock releasing(releasing_);
  std::deque<std::shared_ptr<const RandomReader>> released;
  const std::scoped_lock lock(mutex_);
  released.swap(kept_);
}

/// The paths about which a question that was asked about `path` is asked next. Each is returned once.
std::vector<std::string> WatchedStore::take_next(Question question, const std::string& path) const {
  const std::string folder = folder_before(path);
  const std::string_view suffix = suffix_of(path);
  const std::scoped_lock lock(mutex_);
  const auto [alike, is_new] = alike_.try_emplace(fmt::format("{}{}*{}", static_cast<char>(question), folder, suffix));
  if (is_new) alike.first = path;
  const std::vector<std::string>* const names = lists_.find(folder);
  if (alike.first == path || names == nullptr) return {};  // A pattern needs two files.
  // Numbers without leading zeros are in order if shorter names come first.
  const auto is_before = [](const std::string& a, const std::string& b) {
    return a.size() != b.size() ? a.size() < b.size() : a < b;
  };
  if (!std::exchange(alike.is_sorted, true)) {
    for (const std::string& name : *names) {
      if (suffix_of(name) == suffix) alike.paths.push_back(folder + name);
    }
    std::ranges::sort(alike.paths, is_before);
  }
  const auto place = std::ranges::lower_bound(alike.paths, path, is_before);
  const auto at = static_cast<std::size_t>(place - alike.paths.begin());
  if (at < alike.next) return {};
  alike.next = std::min(at + kAhead, alike.paths.size());
  return {place, alike.paths.begin() + static_cast<std::ptrdiff_t>(alike.next)};
}

/// Ignores failures, because a later request for the same file reports them.
void WatchedStore::ask_ahead(Question question, const std::string& path) const {
  // Names without a suffix have nothing in common, but may all be folders.
  if (requests_ < 2 || is_url(path) || (question == Question::kContent && suffix_of(path).empty())) return;
  const std::vector<std::string> next = take_next(question, path);
  for_each_index(next.size(), requests_, [&](std::size_t i) {
    try {
      if (question == Question::kStatus) {
        asked_once(statuses_, next[i], mutex_, [&] { return inner_.status(next[i]); });
      } else {
        open_once(next[i], &Opened::file, [&] { return inner_.open(next[i]); });
      }
    } catch (const Error&) {
    }
  });
}

void WatchedStore::expect_unchanged() const {
  std::vector<std::pair<std::string, Facts>> all;
  {
    const std::scoped_lock lock(mutex_);
    for (const auto& [path, entry] : opened_.entries()) {
      if (entry->is_known) all.emplace_back(path, entry->facts);
    }
  }
  for_each_index(all.size(), requests_, [&](std::size_t i) {
    const auto& [path, facts] = all[i];
    const FileStatus status = inner_.status(path);
    if (status.kind == FileKind::kAbsent) throw file_changed(path).because("it was removed");
    compare(path, facts, {status.identity(), status.bytes, status.modified_ns});
  });
}

void WatchedStore::compare(const std::string& path, const Facts& opened, const Facts& now) {
  if (opened.bytes != now.bytes) {
    throw file_changed(path).expected(fmt::format("{} bytes", opened.bytes)).found(fmt::format("{} bytes", now.bytes));
  }
  if (opened.identity != now.identity) throw file_changed(path).because("it was replaced by another file");
  if (opened.modified_ns != now.modified_ns) throw file_changed(path).because("it was modified");
}

}  // namespace shard
