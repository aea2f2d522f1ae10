#include "formats/hdf5/parser/channel.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>

namespace shard::hdf5 {

namespace {

constexpr int kSocket = 0;
constexpr auto kBlock = static_cast<std::uint64_t>(kReadBlock);
constexpr std::uint64_t kNoBlock = ~std::uint64_t{0};
constexpr std::uint64_t kMostSlots = 4096;  ///< 64 MiB, of which only the used part takes memory.

volatile std::sig_atomic_t speaking = 0;  ///< Not 0 while a frame is sent or an answer is awaited.

/// Exists while the socket is in use.
struct Speaking {
  Speaking() { speaking = speaking + 1; }
  ~Speaking() { speaking = speaking - 1; }
  Speaking(const Speaking&) = delete;
  Speaking& operator=(const Speaking&) = delete;
};

void write_all(const void* data, std::size_t bytes) {
  const char* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t count = write(kSocket, at, bytes);
    if (count < 0 && errno != EINTR) _exit(1);
    if (count <= 0) continue;
    at += count;
    bytes -= static_cast<std::size_t>(count);
  }
}

void read_all(std::span<std::byte> out) {
  while (!out.empty()) {
    const ssize_t count = ::read(kSocket, out.data(), out.size());
    if (count == 0 || (count < 0 && errno != EINTR)) _exit(1);
    if (count > 0) out = out.subspan(static_cast<std::size_t>(count));
  }
}

}  // namespace

Channel::Channel(std::int64_t file_bytes)
    : file_bytes_(file_bytes),
      held_(std::min(kMostSlots, static_cast<std::uint64_t>(file_bytes) / kBlock + 1), kNoBlock),
      memory_(std::make_unique_for_overwrite<std::byte[]>(held_.size() * kBlock)) {}

void Channel::send(FrameKind kind, std::string_view payload) {
  const FrameHead head{kind, static_cast<std::uint32_t>(payload.size())};
  const Speaking now;
  write_all(&head, sizeof head);
  write_all(payload.data(), payload.size());
}

void Channel::ask(std::uint64_t first_block, std::uint32_t blocks, std::span<std::byte> out) {
  const ReadRequest request{first_block, blocks};
  const Speaking now;
  send(FrameKind::kRead, {reinterpret_cast<const char*>(&request), sizeof request});
  read_all(out);
}

bool Channel::is_busy() { return speaking != 0; }

std::span<const std::byte> Channel::block(std::uint64_t number) {
  const std::size_t slot = number % held_.size();
  const std::uint64_t bytes = std::min(kBlock, static_cast<std::uint64_t>(file_bytes_) - number * kBlock);
  const std::span<std::byte> memory(memory_.get() + slot * kBlock, bytes);
  if (held_[slot] != number) {
    held_[slot] = kNoBlock;
    ask(number, 1, memory);
    held_[slot] = number;
  }
  return memory;
}

void Channel::read(std::uint64_t offset, std::span<std::byte> out) {
  const auto end = static_cast<std::uint64_t>(file_bytes_);
  while (!out.empty() && offset < end) {
    const std::uint64_t number = offset / kBlock, skip = offset % kBlock;
    const std::uint64_t whole = std::min<std::uint64_t>(std::min(out.size(), end - offset) / kBlock, kMostReadBlocks);
    std::size_t count;
    if (skip == 0 && whole > 1) {  // Long reads bypass the cache.
      count = whole * kBlock;
      ask(number, static_cast<std::uint32_t>(whole), out.first(count));
    } else {
      const std::span<const std::byte> data = block(number).subspan(skip);
      count = std::min(data.size(), out.size());
      std::memcpy(out.data(), data.data(), count);
    }
    offset += count;
    out = out.subspan(count);
  }
  if (!out.empty()) std::memset(out.data(), 0, out.size());
}

}  // namespace shard::hdf5
