#include "libshard/io/stoppable_store.h"

#include <span>

#include "libshard/core/error.h"
#include "libshard/io/forwarding_reader.h"

namespace shard {

namespace {

class StoppableReader final : public ForwardingReader {
 public:
  StoppableReader(std::unique_ptr<RandomReader> inner, const std::function<bool()>& is_stopped,
                  std::atomic<std::int64_t>& counted)
      : ForwardingReader(std::move(inner)), is_stopped_(is_stopped), counted_(counted) {}
  void read_at(std::int64_t offset_bytes, std::span<std::byte> out) const override {
    check();
    file_->read_at(offset_bytes, out);
    counted_ += std::ssize(out);
  }
  void read_many(std::span<const RangedRead> ranges) const override {
    check();
    file_->read_many(ranges);
    for (const RangedRead& range : ranges) counted_ += std::ssize(range.out);
  }
  int streams_at_once() const override { return file_->streams_at_once(); }
  void stream(std::int64_t offset_bytes, std::int64_t bytes, const ByteTaker& take) const override {
    file_->stream(offset_bytes, bytes, [&](std::span<const std::byte> arrived) {
      check();
      take(arrived);
      counted_ += std::ssize(arrived);
    });
  }

 private:
  void check() const {
    if (is_stopped_()) throw Error(ErrorCode::kInterrupted, "interrupted");
  }

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
