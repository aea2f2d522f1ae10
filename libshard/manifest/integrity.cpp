#include "libshard/manifest/integrity.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "libshard/core/ascii.h"
#include "libshard/core/error.h"
#include "libshard/manifest/read_json.h"

namespace shard {

namespace {

using nlohmann::json;

constexpr std::string_view kIntegrity = "integrity.json";
constexpr int kIntegrityDepth = 4;

std::string hash_of(const std::string& name, const json& value) {
  std::string hash = lower_case(value.is_string() ? value.get<std::string>() : std::string());
  constexpr std::size_t kDigits = 64;
  if (hash.size() == kDigits && hash.find_first_not_of("0123456789abcdef") == std::string::npos) return hash;
  throw bad_document(kIntegrity, fmt::format("'{}' has no SHA-256", name))
      .expected(fmt::format("{} hexadecimal digits", kDigits))
      .found(value.dump());
}

}  // namespace

std::map<std::string, std::string> parse_integrity(std::string_view text, const std::string& file) {
  try {
    const json document = read_json(text, kIntegrity, kIntegrityDepth);
    if (!document.is_object()) throw bad_document(kIntegrity, "not an object");
    const auto algorithm = document.find("algorithm");
    const auto files = document.find("files");
    if (files == document.end() || !files->is_object()) throw bad_document(kIntegrity, "key 'files' is missing");
    if (algorithm == document.end() || *algorithm != "sha256") {
      throw Error(ErrorCode::kUnsupported, "integrity.json: the algorithm is not sha256");
    }
    std::map<std::string, std::string> hashes;
    for (const auto& [name, value] : files->items()) hashes.emplace(name, hash_of(name, value));
    return hashes;
  } catch (Error& error) {
    throw error.in_file(file);
  }
}

}  // namespace shard
