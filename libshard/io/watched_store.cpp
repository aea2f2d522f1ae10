#include "libshard/io/watched_store.h"

#include <fmt/format.h>

#include <utility>

#include "libshard/core/error.h"
#include "libshard/io/paths.h"

namespace shard {

namespace {

Error changed(const std::string& path) {
  return Error(ErrorCode::kCorruption, "cannot use the data: the file changed while it was being read")
      .in_file(path)
      .hint("run again when nothing is writing to the source");
}

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

}  // namespace

FileStatus WatchedStore::status(const std::string& path) const {
  return asked_once(statuses_, path, mutex_, [&] { return inner_.status(path); });
}

std::vector<std::string> WatchedStore::list(const std::string& folder) const {
  return asked_once(lists_, folder, mutex_, [&] { return inner_.list(folder); });
}

std::unique_ptr<RandomReader> WatchedStore::open(const std::string& path) const {
  return watched(path, inner_.open(path));
}

std::unique_ptr<RandomReader> WatchedStore::open_below(const std::string& folder, const std::string& relative) const {
  return watched(join_path(folder, relative), inner_.open_below(folder, relative));
}

std::unique_ptr<RandomReader> WatchedStore::watched(const std::string& path, std::unique_ptr<RandomReader> file) const {
  const Facts now{file->identity(), file->size(), file->modified_ns()};
  const std::scoped_lock lock(mutex_);
  const auto [entry, is_new] = opened_.try_emplace(path, now);
  if (!is_new) compare(path, entry->second, now);
  return file;
}

void WatchedStore::expect_unchanged() const {
  const std::scoped_lock lock(mutex_);
  for (const auto& [path, facts] : opened_) {
    const FileStatus status = inner_.status(path);
    if (status.kind == FileKind::kAbsent) throw changed(path).because("it was removed");
    compare(path, facts, {status.identity(), status.bytes, status.modified_ns});
  }
}

void WatchedStore::compare(const std::string& path, const Facts& opened, const Facts& now) {
  if (opened.bytes != now.bytes) {
    throw changed(path).expected(fmt::format("{} bytes", opened.bytes)).found(fmt::format("{} bytes", now.bytes));
  }
  if (opened.identity != now.identity) throw changed(path).because("it was replaced by another file");
  if (opened.modified_ns != now.modified_ns) throw changed(path).because("it was modified");
}

}  // namespace shard
