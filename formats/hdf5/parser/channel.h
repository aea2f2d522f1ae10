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

/// The socket. Ends the process if the other side has closed it.
class Channel {
 public:
  explicit Channel(std::int64_t file_bytes);

  std::int64_t file_bytes() const { return file_bytes_; }
  /// Reads bytes of the file; zeros after its end.
  void read(std::uint64_t offset, std::span<std::byte> out);
  void send(FrameKind kind, std::string_view payload);
  /// Whether a frame is being sent, or an answer awaited. For handlers of signals.
  static bool is_busy();

 private:
  std::span<const std::byte> block(std::uint64_t number);
  void ask(std::uint64_t first_block, std::uint32_t blocks, std::span<std::byte> out);

  std::int64_t file_bytes_;
  /// A direct-mapped cache: block n can only be in slot n % held_.size(). Datasets are read in the order of their
  /// names, and stored in any order. The cache contains most files completely.
  std::vector<std::uint64_t> held_;
  std::unique_ptr<std::byte[]> memory_;
};

}  // namespace shard::hdf5
