#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <optional>
#include <ostream>
#include <string>

#include "apps/shardctl/app.h"
#include "apps/shardctl/descriptor_buffer.h"
#include "apps/shardctl/signals.h"
#include "apps/shardctl/test_door.h"
#include "libshard/io/local_disk.h"

namespace {

std::optional<std::string> environment(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

}  // namespace

int main(int argc, char** argv) {
  shard::app::SignalWatch signals;
  shard::app::DescriptorBuffer buffer(STDOUT_FILENO);
  std::ostream out(&buffer);
  shard::app::Session session{shard::posix_disk(),
                              out,
                              std::cerr,
                              isatty(STDOUT_FILENO) == 1,
                              isatty(STDERR_FILENO) == 1,
                              environment,
                              signals.token(),
                              [&signals] { return signals.signal(); },
                              [&buffer] { return buffer.error(); },
                              [&signals] { signals.end_at_once(); },
                              [&signals] { signals.mute(); }};
  if (auto hold = environment("SHARDCTL_TEST_HOLD"))
    session.on_step = shard::app::hold_step(session.fs, *std::move(hold));
  return shard::app::run({argv + 1, argv + argc}, session);
}
