/// \file
/// A process that answers over a socket and has nothing else. Inside formats/hdf5 only.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace shard::hdf5 {

/// The end of a process.
struct Fate {
  enum class Kind { kEnded, kOutOfTime, kWithoutSandbox };
  Kind kind = Kind::kEnded;
  std::string text{};  ///< "it crashed (Segmentation fault)".
};

/// Started with one end of a socket as its only descriptor (number 0), no environment and no signal blocked. Killed and
/// waited for by the destructor at the latest. Threads: one.
class ParserProcess {
 public:
  /// `name`: what the process is told that it was called by. `silence`: a process that neither sends nor takes anything
  /// for so long is ended. \throws Error kResource  it cannot be started
  ParserProcess(const std::string& program, const std::string& name, const std::vector<std::string>& arguments,
                std::chrono::milliseconds silence);
  ~ParserProcess();
  ParserProcess(const ParserProcess&) = delete;
  ParserProcess& operator=(const ParserProcess&) = delete;

  /// Fills `out` with what it sends. \returns false  it ended before
  /// \throws Error kCorruption  it is silent
  bool receive(std::span<std::byte> out);
  /// \returns false  it ended before it took all
  /// \throws Error kCorruption  it is silent
  bool send(std::span<const std::byte> data);
  /// Waits for a process that ended its answer early.
  Fate fate();
  /// Ends it at the latest. \returns the processor time that it took
  std::chrono::microseconds end();

 private:
  void wait_for(short events);
  int reap();

  std::chrono::microseconds used_{};  ///< Set when it is waited for.
  std::chrono::milliseconds silence_;
  int socket_ = -1;
  pid_t process_ = -1;
};

}  // namespace shard::hdf5
