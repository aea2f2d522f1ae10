#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <optional>
#include <ostream>
#include <span>
#include <string>
#include <string_view>

#include "apps/shardctl/app.h"
#include "apps/shardctl/render/report.h"
#include "apps/shardctl/session/descriptor_buffer.h"
#include "apps/shardctl/session/signals.h"
#include "formats/helper.h"
#include "libshard/io/local_disk.h"
#ifdef SHARD_TEST_HOOKS
#include "apps/shardctl/session/test_hooks.h"
#endif

namespace {

std::optional<std::string> environment(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

int run(int argc, char** argv) {
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
#ifdef SHARD_TEST_HOOKS
  if (auto hold = environment("SHARDCTL_TEST_HOLD"))
    session.on_step = shard::app::hold_step(session.fs, *std::move(hold));
#endif
  return shard::app::run({argv + 1, argv + argc}, session);
}

}  // namespace

int main(int argc, char** argv) {
  if (const std::optional<int> code = shard::run_as_helper({argv, static_cast<std::size_t>(argc)})) return *code;
  try {
    return run(argc, argv);
  } catch (const std::exception&) {  // Not even enough to report it.
    constexpr std::string_view kText = "shardctl: error: out of memory\n";
    [[maybe_unused]] const auto told = write(STDERR_FILENO, kText.data(), kText.size());
    return shard::app::exit_code_for(shard::ErrorCode::kResource);
  }
}
