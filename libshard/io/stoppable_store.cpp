#include "libshard/io/stoppable_store.h"

#include <span>

#include "libshard/core/error.h"

namespace shard {

namespace {

class StoppableReader final : public RandomReader {
 public:
  StoppableReader(std::unique_ptr<RandomReader> inner, const std::function<bool()>& is_stopped,
                  std::atomic<std::int64_t>& counted)
      : inner_(std::move(inner)), is_stopped_(is_stopped), counted_(counted) {
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
  int requests_at_once() const override { return inner_->requests_at_once(); }
  int descriptor() const override { return inner_->descriptor(); }

 private:
  void check() const {
    if (is_stopped_()) throw Error(ErrorCode::kInterrupted, "interrupted");
  }

  std::unique_ptr<RandomReader> inner_;
  const std::function<bool()>& is_stopped_;
  std::atomic<std::int64_t>& counted_;
};

}  // namespace

std::unique_ptr<RandomReader> StoppableStore::open(const std::string& path) const {
  return std::make_unique<StoppableReader>(inner_.open(path), is_stopped_, counted_);
}

std::unique_ptr<RandomReader> StoppableStore::open_below(const std::string& folder, const std::string& relative) const {
  return std::make_unique<StoppableReader>(inner_.open_below(folder, relative), is_stopped_, counted_);
}

}  // namespace shard
