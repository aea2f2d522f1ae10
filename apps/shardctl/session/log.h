/// \file
/// The log of -v, -vv and --log-file. Opened only when one of them is given, so that other runs start at once. The file
/// is appended to, a line in one write: nothing waits in a buffer for a signal, and ranks may share a file.
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
  ~Log();                                          ///< Warns of lines that could not be written.
  bool is_on() const { return impl_ != nullptr; }  ///< Whether anybody gets the lines.
  void info(std::string_view text);                ///< -v: each step.
  void debug(std::string_view text);               ///< -vv: figures too.

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

enum class LogLevel { kInfo, kWarning, kError };
/// Adds to --log-file what stderr shows besides the log, or would without --quiet. A file that cannot be written is
/// ignored here.
void log_to_file(const Session& session, LogLevel level, std::string_view text);

}  // namespace shard::app
