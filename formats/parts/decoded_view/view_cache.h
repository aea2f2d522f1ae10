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

/// What was asked for last is kept: up to kMostViews whose memory (RandomReader::held_bytes) is together at most
/// kMostHeld, and always the last. Threads: safe; one view is made at a time.
class ViewCache {
 public:
  /// The view of a storage; `make` makes one that is not kept.
  template <class Make>
  std::shared_ptr<const RandomReader> get(std::uint32_t storage, const Make& make) {
    const std::scoped_lock lock(mutex_);
    const auto kept = std::ranges::find(views_, storage, &Kept::first);
    Kept last(storage, kept != views_.end() ? kept->second : make());
    if (kept != views_.end()) views_.erase(kept);
    views_.push_back(std::move(last));
    while (views_.size() > 1 && (views_.size() > kMostViews || held_bytes() > kMostHeld)) views_.pop_front();
    return views_.back().second;
  }

 private:
  using Kept = std::pair<std::uint32_t, std::shared_ptr<const RandomReader>>;
  static constexpr std::size_t kMostViews = 64;
  static constexpr std::int64_t kMostHeld = 32 << 20;

  std::int64_t held_bytes() const {
    std::int64_t bytes = 0;
    for (const Kept& each : views_) bytes += each.second->held_bytes();
    return bytes;
  }

  std::mutex mutex_;
  std::deque<Kept> views_;
};

}  // namespace shard::decoded_view
