/// \file
/// Progress on stderr, drawn by its own thread: one redrawn line on a terminal, several lines otherwise, or JSON Lines.
/// Rank 0 shows the sum of all ranks. With -v or --log-file each rank also logs its own progress. With -v and JSON
/// Lines, each of several ranks also prints a line for itself.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "apps/shardctl/session/log.h"
#include "apps/shardctl/session/session.h"
#include "libshard/ranks/late_ranks.h"

namespace shard::app {

/// Starts to draw after one second. finish() or the destructor erases the line. Draws nothing with --quiet. With
/// `auto`, draws nothing if stderr is not a terminal or shows the log (-v). Logs a line every 10 s and one at the end.
class ProgressMeter {
 public:
  /// `own` returns the bytes that this rank has done; the meter's thread calls it. `others` is the number of bytes that
  /// the other ranks have done. Ownership: borrows all arguments.
  ProgressMeter(const Session& session, Log& log, std::string what, std::function<std::int64_t()> own,
                const std::atomic<std::int64_t>& others);
  ~ProgressMeter();
  void set_total(std::int64_t bytes);
  /// Receives the ranks that the other ranks wait for; null if nothing is drawn.
  LateRanks* awaited() { return style_ == Style::kNone ? nullptr : &awaited_; }
  void finish();

 private:
  enum class Style { kNone, kRedraw, kLines, kJson };
  static Style style_of(const Session& session);
  void run();
  std::vector<int> late_ranks() const;
  /// The figures at one moment; `total` is 0 if unknown.
  struct Figures {
    std::int64_t done, total;
    double seconds, bytes_per_second;
    std::optional<double> seconds_left;
  };
  /// Whether anything is drawn each second.
  bool is_drawn() const { return style_ != Style::kNone || tells_own_; }
  Figures figures(std::int64_t done, std::int64_t total) const;
  std::string text_of(const Figures& now) const;
  void draw();
  /// `rank` is the rank of these figures, or empty for the sum of all ranks.
  void draw_json(const Figures& now, const std::vector<int>& awaited, std::optional<int> rank);
  void log_progress();
  void log_end();

  const Session& session_;
  Log& log_;
  const Style style_;
  const bool tells_own_;
  const std::string what_;
  const std::function<std::int64_t()> own_;
  const std::atomic<std::int64_t>& others_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  LateRanks awaited_;
  std::mutex mutex_;
  std::condition_variable ended_;
  std::int64_t total_ = 0;
  bool over_ = false, drawn_ = false;
  std::thread thread_;
};

}  // namespace shard::app
