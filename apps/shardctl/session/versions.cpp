#include "apps/shardctl/session/versions.h"

#include <fmt/core.h>
#include <openssl/crypto.h>
#include <spdlog/version.h>
#include <xxhash.h>
#include <zlib.h>

#include <CLI/Version.hpp>
#include <algorithm>
#include <iterator>
#include <nlohmann/detail/abi_macros.hpp>

#include "formats/plugins.h"

namespace shard::app {

std::string own_version() { return SHARD_VERSION; }

std::string compiler() {
#ifdef __clang__
  return fmt::format("clang {}.{}.{}, C++{}", __clang_major__, __clang_minor__, __clang_patchlevel__,
                     __cplusplus / 100 % 100);
#else
  return fmt::format("g++ {}, C++{}", __VERSION__, __cplusplus / 100 % 100);
#endif
}

std::vector<std::pair<std::string, std::string>> library_versions() {
  const unsigned xxhash = XXH_versionNumber();
  std::vector<std::pair<std::string, std::string>> versions{
      {"cli11", CLI11_VERSION},
      {"fmt", fmt::format("{}.{}.{}", FMT_VERSION / 10000, FMT_VERSION / 100 % 100, FMT_VERSION % 100)},
      {"nlohmann_json",
       fmt::format("{}.{}.{}", NLOHMANN_JSON_VERSION_MAJOR, NLOHMANN_JSON_VERSION_MINOR, NLOHMANN_JSON_VERSION_PATCH)},
      {"openssl", OpenSSL_version(OPENSSL_FULL_VERSION_STRING)},
      {"spdlog", fmt::format("{}.{}.{}", SPDLOG_VER_MAJOR, SPDLOG_VER_MINOR, SPDLOG_VER_PATCH)},
      {"xxhash", fmt::format("{}.{}.{}", xxhash / 10000, xxhash / 100 % 100, xxhash % 100)},
      {"zlib", zlibVersion()},
  };
  std::ranges::move(plugin_library_versions(), std::back_inserter(versions));
  std::ranges::sort(versions);
  return versions;
}

}  // namespace shard::app
