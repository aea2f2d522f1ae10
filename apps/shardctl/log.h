/// \file
/// The log of -v, -vv and --log-file. Made only when one of them is given, so that the others start at once.
#pragma once

#include <memory>
#include <string_view>

#include "apps/shardctl/session.h"

namespace shard::app {

/// Threads: safe.
class Log {
 public:
  /// \throws Error kResource  the log file cannot be opened.
  Log(const Session& session, const Options& options);
  ~Log();
  void info(std::string_view text);   ///< -v: what is done.
  void debug(std::string_view text);  ///< -vv: with numbers.

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace shard::app
