/// \file
/// A world whose checkpoints are written by shardctl itself, damaged, and verified.
#pragma once

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "tests/apps/world.h"

namespace shard::app {

struct VerifyWorld : World {
  std::string content(const std::string& path) const {
    const std::vector<std::byte> bytes = state->content(path);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  void flip(const std::string& path, std::size_t byte, int bit) {
    std::string bytes = content(path);
    bytes.at(byte) = static_cast<char>(bytes[byte] ^ (1 << bit));
    put(path, bytes);
  }
  void cut(const std::string& path, std::size_t bytes) { put(path, content(path).substr(0, bytes)); }

  /// Runs `verify ... --json`. `code` is its exit code.
  nlohmann::json verify(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "verify");
    arguments.emplace_back("--json");
    code = run(arguments);
    return nlohmann::json::parse(out);
  }
  /// "error crc_mismatch", "warning extra_file", ... of the last document, each once, in its order.
  static std::vector<std::string> kinds(const nlohmann::json& document) {
    std::vector<std::string> all;
    for (const auto& finding : document.at("findings")) {
      std::string kind = finding.at("severity").get<std::string>() + " " + finding.at("kind").get<std::string>();
      if (std::ranges::find(all, kind) == all.end()) all.push_back(std::move(kind));
    }
    return all;
  }

  /// Copies a folder or a file of tests/data into this world.
  void load(const std::string& name, const std::string& to) {
    const std::filesystem::path from = std::filesystem::path(SHARD_TEST_DATA) / name;
    if (std::filesystem::is_regular_file(from)) return put(to, text_of(from));
    for (const auto& entry : std::filesystem::recursive_directory_iterator(from)) {
      if (entry.is_regular_file()) put(to + "/" + relative(entry.path(), from).string(), text_of(entry.path()));
    }
  }

  int code = -1;

 private:
  static std::string text_of(const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
};

}  // namespace shard::app
