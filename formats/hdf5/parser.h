/// \file
/// Reading what an HDF5 file holds, by libhdf5 in a process of its own. Inside formats/hdf5 only.
///
/// libhdf5 1.10 has known faults that malformed files reach, so libhdf5 never opens a source file in this process. A
/// program beside the plug-in (shard-hdf5-parser) is started for each file. It can open nothing: it asks for bytes of
/// the file through a socket, which this side reads and counts, and answers with entries. Before the first byte of the
/// file it gives up everything else: limits of memory, processor time and file size, and a seccomp filter that leaves
/// reading and writing the socket and taking memory. Its answer is not trusted either: lengths, kinds and numbers are
/// checked when it is decoded.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>

#include "formats/hdf5/described.h"
#include "libshard/core/arena.h"
#include "libshard/io/source_store.h"

namespace shard::hdf5 {

/// The processor time that the parsers of one source's files may take together: in proportion to the bytes of the
/// files.
class ParserTime {
 public:
  /// For a file that holds so many bytes: a hole cannot describe anything.
  void earn(std::int64_t held_bytes) { held_bytes_ += held_bytes; }
  void spend(std::chrono::microseconds time) { spent_ += time; }
  /// The time left in whole seconds, at least 1; 0: none.
  std::int64_t seconds_left() const;

 private:
  std::int64_t held_bytes_ = 0;
  std::chrono::microseconds spent_{};
};

/// Calls `each` for every entry of the file. An entry and its views live during the call only. `each` may throw to end
/// it. The arena's budget earns the bytes that were read (each once) and pays for entries, chunks, boxes and contents.
/// \throws Error kCorruption  the file is malformed, or its parser crashed or ran into a limit
/// What is not supported is an entry kUnread: external links and storage, user-defined links, filters that are not
/// FilterKind, virtual datasets that are not made of boxes.
/// \throws Error kUnsupported  by name: groups more than 1024 deep, a file of a newer version, a virtual dataset whose
/// selections take libhdf5 all of the time; this system lets the parser not give up what it does not need
/// \throws Error kResource  the parser cannot be started
/// \throws Error  what `file` throws
/// Threads: safe, one process each. Cost: a process (milliseconds), then linear in what the file describes.
FileFacts parse_file(const RandomReader& file, Arena& arena, ParserTime& time,
                     const std::function<void(const Entry&)>& each);

}  // namespace shard::hdf5
