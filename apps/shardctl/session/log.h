/// \file The log of -v, -vv and --log-file. It is opened only if one of them is given, so that other runs start at
///   once. Each line is appended to the file in one write, so signals lose no lines and ranks may share a file.
#pragma once

#include <memory>
#include <string_view>

#include "apps/shardctl/session/session.h"

namespace shard::app {

/// Ownership: borrows the session. Threads: safe.
class Log {
 public:
  /// \throws Error kResource  the log file cannot be opened, or is not a regular file.
  explicit Log(const Session& session);
  ~Log();                                          ///< Warns if lines could not be written.
  bool is_on() const { return impl_ != nullptr; }  ///< Whether the lines go anywhere.
  void info(std::string_view text);                ///< -v: each step.
  void debug(std::string_view text);               ///< -vv: figures as well.

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

enum class LogLevel { kInfo, kWarning, kError };
/// Adds a line that stderr shows, or would show without --quiet, to the file of --log-file. Ignores a file that cannot
/// be written.
void log_to_file(const Session& session, LogLevel level, std::string_view text);

}  // namespace shard::app
