#include "formats/plugins.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "formats/hdf5_source.h"
#include "formats/registry.h"
#include "libshard/core/error.h"
#include "libshard/core/shared_library.h"
#include "libshard/io/paths.h"

namespace shard {

namespace {

constexpr std::array kKnown{
    KnownFormat{"hdf5", "libshard_hdf5.so", kHdf5Suffixes, "libhdf5-dev and libseccomp-dev", "libhdf5", "libhdf5-103-1",
                is_hdf5_source},
    KnownFormat{"megatron-dist", {}},
    KnownFormat{"llama", {}},
};

std::string path_of(const KnownFormat& format) {
  return join_path(folder_of_code(kKnown.data()), std::string(format.library));
}

}  // namespace

std::span<const KnownFormat> known_formats() { return kKnown; }

bool is_installed(const KnownFormat& format) {
  return why_no_plugins().empty() && !format.library.empty() && ::access(path_of(format).c_str(), F_OK) == 0;
}

void load_format_plugin(const std::string& path) {
  const SharedLibrary library(path);
  if (!library.is_open()) {
    throw Error(ErrorCode::kUnsupported, fmt::format("cannot open the plug-in {}", base_name(path)))
        .in_file(path)
        .because(library.why());
  }
  reinterpret_cast<AddFormatsOfPlugin>(library.entry(kFormatPluginEntry))(&register_format);
}

void load_plugin_of(const KnownFormat& format) {
  try {
    load_format_plugin(path_of(format));
  } catch (Error& error) {
    const bool lacks_library = !format.needs.empty() && error.why().starts_with(format.needs);
    if (lacks_library) error.hint(fmt::format("install Debian's package {}", format.package));
    throw;
  }
}

std::vector<std::pair<std::string, std::string>> plugin_library_versions() {
  std::vector<std::pair<std::string, std::string>> versions;
  for (const KnownFormat& format : kKnown) {
    if (format.needs.empty() || !is_installed(format)) continue;
    const SharedLibrary library(path_of(format));
    if (!library.is_open()) continue;
    if (void* const entry = library.find(kLibraryVersionEntry); entry != nullptr) {
      versions.emplace_back(format.needs, reinterpret_cast<LibraryVersion>(entry)());
    }
  }
  return versions;
}

const KnownFormat* known_format_of(const Source& source) {
  const auto found = std::ranges::find_if(
      kKnown, [&](const KnownFormat& format) { return format.detect != nullptr && format.detect(source); });
  return found == kKnown.end() ? nullptr : &*found;
}

void load_installed_plugins() {
  for (const KnownFormat& format : kKnown) {
    try {
      if (is_installed(format)) load_plugin_of(format);
    } catch (const Error&) {
      continue;  // format_named() says why when one of its formats is asked for.
    }
  }
}

}  // namespace shard
