#include "libshard/manifest/integrity.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>

#include "libshard/core/error.h"

namespace shard {

namespace {

using nlohmann::json;

constexpr int kMaxDepth = 4;

Error wrong(const std::string& message) {
  return Error(ErrorCode::kCorruption, "integrity.json: " + message).of_kind(FindingKind::kBadHeader);
}

json parse(std::string_view text) {
  const auto limit_depth = [](int depth, json::parse_event_t, json&) {
    if (depth > kMaxDepth) throw wrong("it nests too deep");
    return true;
  };
  try {
    return json::parse(text, limit_depth);
  } catch (const json::exception& error) {
    throw wrong("not JSON").because(error.what());
  }
}

std::string hash_of(const std::string& name, const json& value) {
  std::string hash = value.is_string() ? value.get<std::string>() : std::string();
  std::ranges::transform(hash, hash.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  constexpr std::size_t kDigits = 64;
  if (hash.size() == kDigits && hash.find_first_not_of("0123456789abcdef") == std::string::npos) return hash;
  throw wrong(fmt::format("'{}' has no SHA-256", name));
}

}  // namespace

std::map<std::string, std::string> parse_integrity(std::string_view text, const std::string& file) {
  try {
    const json document = parse(text);
    if (!document.is_object()) throw wrong("not an object");
    const auto algorithm = document.find("algorithm");
    const auto files = document.find("files");
    if (files == document.end() || !files->is_object()) throw wrong("key 'files' is missing");
    if (algorithm == document.end() || *algorithm != "sha256") {
      throw Error(ErrorCode::kUnsupported, "integrity.json: another algorithm than sha256");
    }
    std::map<std::string, std::string> hashes;
    for (const auto& [name, value] : files->items()) hashes.emplace(name, hash_of(name, value));
    return hashes;
  } catch (Error& error) {
    throw error.in_file(file);
  }
}

}  // namespace shard
