#include "apps/shardctl/session/test_hooks.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <thread>

namespace shard::app {

std::function<void(int rank, std::string_view step)> hold_step(LocalDisk& fs, std::string hold) {
  return [&fs, hold = std::move(hold)](int rank, std::string_view step) {
    const std::string mine = fmt::format("{}:{}:", step, rank);
    if (!hold.starts_with(mine)) return;
    const std::string file = hold.substr(mine.size()), unnamed = file + ".new";
    const std::string text = fmt::format("{}\n", getpid());
    const auto writer = fs.create(unnamed);
    writer->write_at(0, std::as_bytes(std::span(text)));
    writer->close();
    fs.rename_new(unnamed, file);
    while (fs.status(file).kind != FileKind::kAbsent) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  };
}

}  // namespace shard::app
