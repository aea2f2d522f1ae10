/// \file
/// A group that breaks in the middle of a job.
#pragma once

#include <functional>
#include <string>
#include <utility>

#include "libshard/core/error.h"
#include "libshard/io/local_disk.h"
#include "libshard/ranks/group.h"

namespace shard::testing {

/// Breaks for all ranks as soon as a path exists on a disk, or a condition is true.
class BreakingGroup : public Group {
 public:
  BreakingGroup(Group& inner, const LocalDisk& disk, std::string path)
      : BreakingGroup(inner, [&disk, path = std::move(path)] { return disk.status(path).kind != FileKind::kAbsent; }) {}
  BreakingGroup(Group& inner, std::function<bool()> is_over) : inner_(inner), is_over_(std::move(is_over)) {}
  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  std::string_view backend() const override { return inner_.backend(); }
  void barrier() override { look(), inner_.barrier(); }
  void broadcast(std::span<std::byte> data, int root) override { look(), inner_.broadcast(data, root); }
  void all_gather(std::span<const std::byte> own, std::span<std::byte> all) override {
    look(), inner_.all_gather(own, all);
  }
  void exchange(std::span<const std::span<const std::byte>> to, std::span<const std::span<std::byte>> from) override {
    look(), inner_.exchange(to, from);
  }
  void set_timeout(std::chrono::milliseconds timeout) override { inner_.set_timeout(timeout); }
  void abort() noexcept override { inner_.abort(); }

 private:
  void look() {
    if (!is_over_()) return;
    inner_.abort();
    throw Error(ErrorCode::kPeer, "a rank is gone");
  }
  Group& inner_;
  const std::function<bool()> is_over_;
};

}  // namespace shard::testing
