/// \file
/// A cache of the last decoding views, so that readers that alternate share a decoder.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "libshard/io/source_store.h"

namespace shard::decoded_view {

/// Keeps the last requested views, as long as their memory (RandomReader::held_bytes) is at most kMostHeld in total.
/// The most recent one is always kept. Threads: safe; one view is made at a time. Cost: constant, on average.
class ViewCache {
 public:
  static constexpr std::int64_t kMostHeld = 32 << 20;

  /// The view of a storage. Calls `make` if the view is not in the cache.
  template <class Make>
  std::shared_ptr<const RandomReader> get(std::uint32_t storage, const Make& make) {
    const std::scoped_lock lock(mutex_);
    const auto [found, is_new] = places_.try_emplace(storage);
    try {
      if (is_new) views_.push_back({storage, make()});
    } catch (...) {
      places_.erase(found);
      throw;
    }
    if (!is_new) views_.splice(views_.end(), views_, found->second);
    found->second = std::prev(views_.end());
    count(views_.back());
    if (++uncounted_ > views_.size() / 8) count_all();  // The memory of a view grows while it is read.
    while (views_.size() > 1 && held_bytes_ > kMostHeld) drop_first();
    return views_.back().view;
  }

 private:
  /// Added to the size of each view, so there are at most a few thousand.
  static constexpr std::int64_t kOwnBytes = 4 << 10;

  struct Kept {
    std::uint32_t storage;
    std::shared_ptr<const RandomReader> view;
    std::int64_t counted = 0;  ///< This view's part of held_bytes_.
  };

  void count(Kept& kept) {
    const std::int64_t bytes = kOwnBytes + kept.view->held_bytes();
    held_bytes_ += bytes - std::exchange(kept.counted, bytes);
  }
  void count_all() {
    for (Kept& each : views_) count(each);
    uncounted_ = 0;
  }
  void drop_first() {
    held_bytes_ -= views_.front().counted;
    places_.erase(views_.front().storage);
    views_.pop_front();
  }

  std::mutex mutex_;
  std::list<Kept> views_;  ///< Ordered by last request, the most recent last.
  std::map<std::uint32_t, std::list<Kept>::iterator> places_;
  std::int64_t held_bytes_ = 0;
  std::size_t uncounted_ = 0;  ///< Calls since all views were counted.
};

}  // namespace shard::decoded_view
