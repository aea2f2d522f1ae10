/// \file
/// Reads the content of an HDF5 file with libhdf5 in a separate process. Inside formats/hdf5 only.
///
/// libhdf5 1.10 has known faults that malformed files trigger, so libhdf5 never opens a source file in this process. A
/// program beside the plug-in (shard-hdf5-parser) is started for each file. It cannot open files. It requests bytes of
/// the file through a socket and answers with entries; this side reads and counts the bytes. Before the first byte of
/// the file it drops all its other rights. It sets limits of memory, processor time and file size, and a seccomp filter
/// that only permits using the socket and allocating memory. Its answer is not trusted either: lengths, kinds and
/// numbers are checked when it is decoded.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "formats/hdf5/described.h"
#include "libshard/core/arena.h"
#include "libshard/io/source_store.h"

namespace shard::hdf5 {

/// Limits the total processor time of the parsers of one source's files, in proportion to the bytes of the files.
class ParserTime {
 public:
  /// Adds time for a file with this many allocated bytes. Holes do not count, because they cannot describe anything.
  void earn(std::int64_t held_bytes) { held_bytes_ += held_bytes; }
  void spend(std::chrono::microseconds time) { spent_ += time; }
  /// The remaining time in whole seconds, at least 1; 0 if there is none.
  std::int64_t seconds_left() const;

 private:
  std::int64_t held_bytes_ = 0;
  std::chrono::microseconds spent_{};
};

/// Calls `each` for every entry of the file. An entry and its views are only valid during the call. `each` may throw to
/// stop. The bytes read are added to the arena's budget, each once; entries, chunks, boxes and contents are charged to
/// it. Unsupported parts become an entry kUnread: external links and storage, user-defined links, filters that are not
/// FilterKind, virtual datasets that do not consist of boxes.
/// \throws Error kCorruption  the file is malformed, or its parser crashed or exceeded a limit
/// \throws Error kUnsupported  by name: groups more than 1024 deep, a file of a newer version, a virtual dataset whose
///   selections take libhdf5 all of the time; or this system does not let the parser drop its rights
/// \throws Error kResource  the parser cannot be started, or was killed
/// \throws Error  the errors of `file`
/// Threads: safe, one process per call. Cost: a process (milliseconds), then linear in the file's description.
FileFacts parse_file(const RandomReader& file, Arena& arena, ParserTime& time,
                     const std::function<void(const Entry&)>& each);

// A process that can only answer over a socket.

/// How a process ended.
struct Fate {
  /// kKilled: by SIGKILL. The system sends it if memory is short, or after the last second of its processor time.
  enum class Kind { kEnded, kKilled, kOutOfMemory, kWithoutSandbox };
  Kind kind = Kind::kEnded;
  std::string text{};  ///< "it crashed (Segmentation fault)".
};

/// Started with one end of a socket as its only descriptor (number 0) and without environment. Signals that end a job
/// are blocked, because terminals and launchers send them to all of its processes. The parser ends with the program.
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
