/// \file
/// The decoding views that were made last, so that readers in turn share a decoder.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <utility>

#include "libshard/io/source_store.h"

namespace shard::decoded_view {

/// First in, first out. Threads: safe; one view is made at a time.
class ViewCache {
 public:
  /// \param capacity  views that are kept; each may hold a decoder of some MiB.
  explicit ViewCache(std::size_t capacity) : capacity_(capacity) {}

  /// The view of a storage; `make` makes one that is not kept.
  template <class Make>
  std::shared_ptr<const RandomReader> get(std::uint32_t storage, const Make& make) {
    const std::scoped_lock lock(mutex_);
    const auto kept = std::ranges::find(views_, storage, &Kept::first);
    if (kept != views_.end()) return kept->second;
    views_.emplace_back(storage, make());
    if (views_.size() > capacity_) views_.pop_front();
    return views_.back().second;
  }

 private:
  using Kept = std::pair<std::uint32_t, std::shared_ptr<const RandomReader>>;
  std::size_t capacity_;
  std::mutex mutex_;
  std::deque<Kept> views_;
};

}  // namespace shard::decoded_view
