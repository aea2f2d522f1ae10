/// \file
/// Progress on stderr, drawn by its own thread: one line that is redrawn on a terminal, else several lines, or JSON
/// Lines.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "apps/shardctl/session.h"
#include "libshard/ranks/awaited_ranks.h"

namespace shard::app {

/// Starts to draw after one second; finish() (or the destructor) erases the line. Draws nothing with --quiet, or with
/// `auto` where stderr is not a terminal or shows the log (-v).
class ProgressMeter {
 public:
  /// `done` returns how many bytes are done; the meter's thread calls it.
  ProgressMeter(const Session& session, std::string what, std::function<std::int64_t()> done);
  ~ProgressMeter();
  void set_total(std::int64_t bytes);
  /// Where to tell whom the other ranks wait for; null where nothing is drawn.
  AwaitedRanks* awaited() { return style_ == Style::kNone ? nullptr : &awaited_; }
  void finish();

 private:
  enum class Style { kNone, kRedraw, kLines, kJson };
  static Style style_of(const Session& session);
  void run();
  std::vector<int> awaited_ranks() const;
  void draw();

  const Session& session_;
  const Style style_;
  const std::string what_;
  const std::function<std::int64_t()> done_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  AwaitedRanks awaited_;
  std::mutex mutex_;
  std::condition_variable ended_;
  std::int64_t total_ = 0;
  bool over_ = false, drawn_ = false;
  std::thread thread_;
};

}  // namespace shard::app
