/// \file
/// A process that can only answer over a socket. Inside formats/hdf5 only.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace shard::hdf5 {

/// How a process ended.
struct Fate {
  enum class Kind { kEnded, kOutOfTime, kWithoutSandbox };
  Kind kind = Kind::kEnded;
  std::string text{};  ///< "it crashed (Segmentation fault)".
};

/// Started with one end of a socket as its only descriptor (number 0), without environment and without blocked signals.
/// The destructor kills it, if necessary, and waits for it. Threads: one.
class ParserProcess {
 public:
  /// `name` is the process's argv[0]. If it neither sends nor receives for the time `silence`, it is killed. \throws
  /// Error kResource  it cannot be started
  ParserProcess(const std::string& program, const std::string& name, const std::vector<std::string>& arguments,
                std::chrono::milliseconds silence);
  ~ParserProcess();
  ParserProcess(const ParserProcess&) = delete;
  ParserProcess& operator=(const ParserProcess&) = delete;

  /// Fills `out` with the bytes that it sends. \returns false if it ended before
  /// \throws Error kCorruption  it does not respond
  bool receive(std::span<std::byte> out);
  /// \returns false if it ended before it received everything
  /// \throws Error kCorruption  it does not respond
  bool send(std::span<const std::byte> data);
  /// Waits for a process that ended its answer early.
  Fate fate();
  /// Kills it if it is still running. \returns the processor time that it took
  std::chrono::microseconds end();

 private:
  void wait_for(short events);
  int reap();

  std::chrono::microseconds used_{};  ///< Set when the process was waited for.
  std::chrono::milliseconds silence_;
  int socket_ = -1;
  pid_t process_ = -1;
};

}  // namespace shard::hdf5
