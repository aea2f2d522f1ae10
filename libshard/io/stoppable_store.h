/// \file StoppableStore: a store whose reads stop on request and are counted.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "libshard/io/source_store.h"

namespace shard {

/// Ownership: the inner store must outlive this store, which must outlive the files that it opens. Threads: safe.
class StoppableStore final : public SourceStore {
 public:
  /// `is_stopped` is called before each read, by any thread.
  StoppableStore(const SourceStore& inner, std::function<bool()> is_stopped)
      : inner_(inner), is_stopped_(std::move(is_stopped)) {}
  std::int64_t bytes_read() const { return counted_; }  ///< Bytes read so far, of all files. Threads: any.
  FileStatus status(const std::string& path) const override { return inner_.status(path); }
  std::vector<std::string> list(const std::string& folder) const override { return inner_.list(folder); }
  /// Reads of the opened files throw Error kInterrupted while `is_stopped` returns true.
  std::unique_ptr<RandomReader> open(const std::string& path) const override;
  std::unique_ptr<RandomReader> open_below(const std::string& folder, const std::string& relative) const override;

 private:
  const SourceStore& inner_;
  std::function<bool()> is_stopped_;
  mutable std::atomic<std::int64_t> counted_ = 0;
};

}  // namespace shard
