/// \file
/// The log of -v, -vv and --log-file. Opened only when one of them is given, so that other runs start at once.
#pragma once

#include <memory>
#include <string_view>

#include "apps/shardctl/session.h"

namespace shard::app {

/// Threads: safe.
class Log {
 public:
  /// \throws Error kResource  the log file cannot be opened, or is not a regular file.
  explicit Log(const Session& session);
  ~Log();
  void info(std::string_view text);   ///< -v: each step.
  void debug(std::string_view text);  ///< -vv: figures too.

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace shard::app
