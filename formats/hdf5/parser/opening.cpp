#include "formats/hdf5/parser/opening.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstring>

#include "formats/hdf5/parser/channel.h"
#include "formats/hdf5/reply.h"

namespace shard::hdf5 {

namespace {

constexpr std::size_t kMostPath = 300;
constexpr std::string_view kWhy =
    "': opening it takes more processor time than a file of this size may use: the selections of a virtual dataset may "
    "have too many blocks";

/// A whole kFailure, ready before the signal comes: a handler may do little more than write it.
std::array<char, sizeof(FrameHead) + 2 + kMostPath + kWhy.size()> frame;
volatile std::sig_atomic_t frame_bytes = 0;  ///< 0: no object is being opened.

void end_by_signal(int) {
  const auto bytes = static_cast<std::size_t>(frame_bytes);
  if (bytes > 0 && !Channel::is_busy() && write(0, frame.data(), bytes) == static_cast<ssize_t>(bytes)) _exit(0);
  std::signal(SIGXCPU, SIG_DFL);
  _exit(kExitOutOfTime);
}

}  // namespace

void say_what_took_the_time() { std::signal(SIGXCPU, end_by_signal); }

Opening::Opening(std::string_view path) {
  path = path.substr(0, kMostPath);
  const FrameHead head{FrameKind::kFailure, static_cast<std::uint32_t>(2 + path.size() + kWhy.size())};
  std::memcpy(frame.data(), &head, sizeof head);
  char* at = frame.data() + sizeof head;
  *at++ = '\1';  // Valid, but not supported.
  *at++ = '\'';
  at = std::copy(path.begin(), path.end(), at);
  at = std::copy(kWhy.begin(), kWhy.end(), at);
  frame_bytes = static_cast<std::sig_atomic_t>(at - frame.data());
}

Opening::~Opening() { frame_bytes = 0; }

}  // namespace shard::hdf5
