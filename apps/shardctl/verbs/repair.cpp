#include <fmt/format.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "apps/shardctl/request/request.h"
#include "apps/shardctl/session/progress.h"
#include "apps/shardctl/source/source.h"
#include "apps/shardctl/verbs/copy.h"
#include "apps/shardctl/verbs/verbs.h"
#include "libshard/core/error.h"
#include "libshard/io/source_store.h"

namespace shard::app {
namespace {

/// A store whose reads stop on request and are counted. Ownership: the inner store must outlive this store, which must
/// outlive the files that it opens. Threads: safe.
class StoppableStore final : public SourceStore {
 public:
  StoppableStore(const SourceStore& inner, std::stop_token stop) : inner_(inner), stop_(std::move(stop)) {}
  std::int64_t bytes_read() const { return counted_; }  ///< Bytes read so far, of all files. Threads: any.
  FileStatus status(const std::string& path) const override { return inner_.status(path); }
  std::vector<std::string> list(const std::string& folder) const override { return inner_.list(folder); }
  /// Reads of the opened files throw Error kInterrupted after a request to stop.
  std::unique_ptr<RandomReader> open(const std::string& path) const override;
  std::unique_ptr<RandomReader> open_below(const std::string& folder, const std::string& relative) const override;

 private:
  const SourceStore& inner_;
  std::stop_token stop_;
  mutable std::atomic<std::int64_t> counted_ = 0;
};

class StoppableReader final : public RandomReader {
 public:
  StoppableReader(std::unique_ptr<RandomReader> inner, const std::stop_token& stop, std::atomic<std::int64_t>& counted)
      : inner_(std::move(inner)), stop_(stop), counted_(counted) {
    name_ = inner_->name();
  }
  void read_at(std::int64_t offset_bytes, std::span<std::byte> out) const override {
    check();
    inner_->read_at(offset_bytes, out);
    counted_ += std::ssize(out);
  }
  void read_many(std::span<const RangedRead> ranges) const override {
    check();
    inner_->read_many(ranges);
    for (const RangedRead& range : ranges) counted_ += std::ssize(range.out);
  }
  std::unique_lock<std::mutex> turn() const override { return inner_->turn(); }
  std::int64_t held_bytes() const override { return inner_->held_bytes(); }
  std::int64_t size() const override { return inner_->size(); }
  FileIdentity identity() const override { return inner_->identity(); }
  std::int64_t modified_ns() const override { return inner_->modified_ns(); }
  std::int64_t allocated_bytes(std::int64_t offset_bytes, std::int64_t count) const override {
    return inner_->allocated_bytes(offset_bytes, count);
  }
  int descriptor() const override { return inner_->descriptor(); }

 private:
  void check() const {
    if (stop_.stop_requested()) throw Error(ErrorCode::kInterrupted, "interrupted");
  }

  std::unique_ptr<RandomReader> inner_;
  const std::stop_token& stop_;
  std::atomic<std::int64_t>& counted_;
};

std::unique_ptr<RandomReader> StoppableStore::open(const std::string& path) const {
  return std::make_unique<StoppableReader>(inner_.open(path), stop_, counted_);
}

std::unique_ptr<RandomReader> StoppableStore::open_below(const std::string& folder, const std::string& relative) const {
  return std::make_unique<StoppableReader>(inner_.open_below(folder, relative), stop_, counted_);
}

void refuse_ranks(const LaunchFacts& launch) {
  if (launch.size <= 1) return;
  throw Error(ErrorCode::kUnsupported, fmt::format("cannot repair with {} ranks", launch.size))
      .because("repair runs in one process, which reads the whole source")
      .hint("run it without a launcher");
}

}  // namespace

int run_repair(Session& session, const Request& request) {
  refuse_ranks(session.launch);
  Salvage salvage(request.read.paths);
  const StoppableStore store(source_store(session), session.stop);  // The whole source is read before the job begins.
  const auto open = [&salvage, &store](const Session& own, const CopyRequest& given, Log& log) {
    const Source like{&store, {given.like}};
    const std::atomic<std::int64_t> none = 0;
    const ProgressMeter meter(
        own, log, "repair: check", [&store] { return store.bytes_read(); }, none);
    return open_source(own, given.read, log,
                       {.salvage = &salvage,
                        .store = &store,
                        .selection = &given.select,
                        .like = given.like.empty() ? nullptr : &like});
  };
  return run_copy_verb(session, request, {.open = open, .salvage = &salvage});
}

}  // namespace shard::app
