/// \file
/// A store whose reads are counted, and end when the program is asked to stop: for work that reads long before a job
/// begins.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "libshard/io/source_store.h"

namespace shard::app {

/// Ownership: the inner store must outlive this, and this whatever it opened. Threads: safe.
class StoppableStore final : public SourceStore {
 public:
  StoppableStore(const SourceStore& inner, std::stop_token stop) : inner_(inner), stop_(std::move(stop)) {}
  std::int64_t bytes_read() const { return counted_; }  ///< So far, of all files. Threads: any.
  FileStatus status(const std::string& path) const override { return inner_.status(path); }
  std::vector<std::string> list(const std::string& folder) const override { return inner_.list(folder); }
  /// The files' reads throw Error kInterrupted once the stop was asked for.
  std::unique_ptr<RandomReader> open(const std::string& path) const override;
  std::unique_ptr<RandomReader> open_below(const std::string& folder, const std::string& relative) const override;

 private:
  const SourceStore& inner_;
  std::stop_token stop_;
  mutable std::atomic<std::int64_t> counted_ = 0;
};

}  // namespace shard::app
