/// \file A reader that passes every call on to a different one; the base of those that change only some of the calls.
/// Inside libshard/io only.
#pragma once

#include <memory>
#include <utility>

#include "libshard/io/source_store.h"

namespace shard {

/// Does not pass on in_memory(), stream() and streams_at_once(), because a derived class may have to see each read.
/// Threads: as the other reader.
class ForwardingReader : public RandomReader {
 public:
  explicit ForwardingReader(std::shared_ptr<const RandomReader> file) : file_(std::move(file)) {
    name_ = file_->name();
  }
  void read_at(std::int64_t offset_bytes, std::span<std::byte> out) const override {
    file_->read_at(offset_bytes, out);
  }
  void read_many(std::span<const RangedRead> ranges) const override { file_->read_many(ranges); }
  void expect_read(std::int64_t offset_bytes, std::int64_t bytes) const override {
    file_->expect_read(offset_bytes, bytes);
  }
  std::unique_lock<std::mutex> turn() const override { return file_->turn(); }
  std::int64_t held_bytes() const override { return file_->held_bytes(); }
  std::int64_t take_overflows() const override { return file_->take_overflows(); }
  std::int64_t size() const override { return file_->size(); }
  FileIdentity identity() const override { return file_->identity(); }
  std::int64_t modified_ns() const override { return file_->modified_ns(); }
  std::int64_t allocated_bytes(std::int64_t offset_bytes, std::int64_t count) const override {
    return file_->allocated_bytes(offset_bytes, count);
  }
  int requests_at_once() const override { return file_->requests_at_once(); }
  int descriptor() const override { return file_->descriptor(); }

 protected:
  const std::shared_ptr<const RandomReader> file_;
};

}  // namespace shard
