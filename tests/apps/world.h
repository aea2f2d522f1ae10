/// \file
/// shardctl in the test's own process: a file system in memory, streams as strings, an environment as a map.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "apps/shardctl/app.h"
#include "libshard/io/local_disk.h"
#include "tests/support/bytes.h"
#include "tests/support/memory_disk.h"

namespace shard::app {

struct World {
  std::shared_ptr<MemoryState> state = std::make_shared<MemoryState>();
  std::unique_ptr<LocalDisk> fs = make_memory_disk(state);
  std::map<std::string, std::string> env;
  std::stop_source stop;
  int signal = 0;
  bool out_is_terminal = false, err_is_terminal = false;
  std::string out, err;

  /// Runs one command line; `out` and `err` are its output.
  int run(const std::vector<std::string>& arguments) {
    std::ostringstream out_stream, err_stream;
    Session session{*fs,
                    out_stream,
                    err_stream,
                    out_is_terminal,
                    err_is_terminal,
                    [this](const std::string& name) {
                      const auto found = env.find(name);
                      return found == env.end() ? std::nullopt : std::optional<std::string>(found->second);
                    },
                    stop.get_token(),
                    [this] { return signal; },
                    [] { return 0; },
                    {}};
    const int code = app::run(arguments, session);
    out = out_stream.str();
    err = err_stream.str();
    return code;
  }

  void put(const std::string& path, const std::string& content) { state->put(path, test::as_span(content)); }
};

/// A .safetensors file: the header and the data after it.
inline std::string safetensors(const std::string& header, const std::string& data) {
  std::string file;
  for (int i = 0; i < 8; ++i) file += static_cast<char>(static_cast<std::uint64_t>(header.size()) >> (8 * i) & 0xFF);
  return file + header + data;
}

/// Tensor "layer.bias" of 2 and "layer.weight" of 2 x 4 bytes (uint8).
inline std::string small_model(const std::string& data = "abABCDEFGH") {
  return safetensors(R"({"layer.bias":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                     R"("layer.weight":{"dtype":"U8","shape":[2,4],"data_offsets":[2,10]}})",
                     data);
}

/// A command that fails, its exit code, and a part of its message.
struct Refusal {
  std::vector<std::string> arguments;
  int code;
  std::string words;
};

/// Tests of verbs, with the small model as /m.safetensors.
struct Verbs : ::testing::Test {
  Verbs() { world.put("/m.safetensors", small_model()); }

  void expect_refusals(const std::vector<Refusal>& table) {
    for (const Refusal& each : table) {
      EXPECT_EQ(world.run(each.arguments), each.code) << ::testing::PrintToString(each.arguments) << world.err;
      EXPECT_THAT(world.err, ::testing::HasSubstr(each.words)) << ::testing::PrintToString(each.arguments);
    }
  }

  World world;
};

}  // namespace shard::app
