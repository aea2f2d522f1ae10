/// \file
/// Memory that processes on one host share. Inside shardtorch only.
#pragma once

#include <cstddef>
#include <string>

namespace shard {

/// The name and id of the running kernel. They are the same for processes that can reach each other over the loopback.
std::string host_identity();

/// Pages of a file without a name. The process that creates them writes. Others read. They are freed when the last
/// process that maps them ends, even if it is killed. Only processes of the same user can open them.
class SharedMemory {
 public:
  /// Creates zeros, which use no memory until they are reserved. \throws Error kResource
  explicit SharedMemory(std::size_t bytes);
  /// Opens the memory of a different process. \throws Error kResource  it cannot be opened from here, or is smaller.
  SharedMemory(const std::string& path, std::size_t bytes);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  /// Allocates memory for bytes [begin, end) before they are written. Without this, a write would end the process if
  /// the system has no memory left. \throws Error kResource. \pre this process created it
  void reserve(std::size_t begin, std::size_t end) const;
  std::byte* data() const { return data_; }  ///< Read-only if a different process created the memory.
  /// The path through which other processes in this PID namespace open it. \pre this process created it
  std::string path() const;

 private:
  void map(int protection);
  void close() noexcept;

  std::size_t bytes_;
  int descriptor_;  ///< -1 if a different process created the memory.
  std::byte* data_ = nullptr;
};

}  // namespace shard
