/// \file UrlStore: the store of a path, chosen by its scheme. It is the only place that decides this.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "libshard/io/source_store.h"
#include "libshard/stores/plugin.h"

namespace shard {

/// Paths of the process go to the disk, URLs (libshard/io/url_path.h) to the plug-in, which is opened at the first URL.
/// Ownership: borrows the disk, which must outlive this. Threads: safe.
class UrlStore final : public SourceStore {
 public:
  struct Options {
    std::function<StoreRequest()> request;  ///< Called at the first URL.
    /// Ends requests while it returns true, with Error kInterrupted. Any thread calls it, often. May be empty.
    std::function<bool()> is_stopped{};
    /// Receives a line when a request is about to be repeated. Any thread calls it. May be empty.
    std::function<void(const std::string& text)> waits{};
  };
  UrlStore(const SourceStore& disk, Options options) : disk_(disk), options_(std::move(options)) {}

  /// All members: \throws Error kUnsupported  the scheme is unknown, or the plug-in is missing
  FileStatus status(const std::string& path) const override { return store_of(path).status(path); }
  std::vector<std::string> list(const std::string& folder) const override { return store_of(folder).list(folder); }
  std::unique_ptr<RandomReader> open(const std::string& path) const override { return store_of(path).open(path); }
  std::unique_ptr<RandomReader> open_below(const std::string& folder, const std::string& relative) const override {
    return store_of(folder).open_below(folder, relative);
  }
  /// The store that writes the objects of a URL. Ownership: this object's. \throws Error kUnsupported
  const ObjectStore& objects(const std::string& url) const;

 private:
  const SourceStore& store_of(const std::string& path) const;
  const UrlFiles& remote(const std::string& url) const;

  const SourceStore& disk_;
  const Options options_;
  mutable std::mutex mutex_;
  mutable std::unique_ptr<UrlFiles> remote_;  ///< Null until the first URL.
};

/// The part of `all` bytes in which UrlStore reads ahead: 8 MiB for each connection and twice that for each reader, at
/// most three quarters.
std::int64_t url_memory_bytes(std::int64_t all, int connections, int readers);

/// RandomReader::requests_at_once for the files of URLs.
inline constexpr int kUrlRequestsAtOnce = 8;

/// Whether objects can be written to a URL's scheme.
bool is_writable_url(std::string_view url);

}  // namespace shard
