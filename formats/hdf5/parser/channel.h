/// \file
/// The parser's side of its socket (see ../reply.h). Inside formats/hdf5/parser only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "formats/hdf5/reply.h"

namespace shard::hdf5 {

/// Ends the process where the other side is gone.
class Channel {
 public:
  explicit Channel(std::int64_t file_bytes);

  std::int64_t file_bytes() const { return file_bytes_; }
  /// Bytes of the file; zeros behind its end.
  void read(std::uint64_t offset, std::span<std::byte> out);
  void send(FrameKind kind, std::string_view payload);
  /// Whether a frame is being sent, or an answer awaited. For handlers of signals.
  static bool is_busy();

 private:
  std::span<const std::byte> block(std::uint64_t number);
  void ask(std::uint64_t first_block, std::uint32_t blocks, std::span<std::byte> out);

  std::int64_t file_bytes_;
  /// A direct-mapped cache: block n may lie in slot n % held_.size(). Datasets are read in the order of their names,
  /// and lie in any: of most files it holds all.
  std::vector<std::uint64_t> held_;
  std::unique_ptr<std::byte[]> memory_;
};

}  // namespace shard::hdf5
