#include "formats/plugins.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "formats/hdf5_source.h"
#include "formats/registry.h"
#include "libshard/core/error.h"
#include "libshard/core/shared_library.h"
#include "libshard/io/paths.h"

#ifdef SHARD_HDF5_INSIDE
extern "C" void shard_formats_3(shard::AddFormat add);
extern "C" const char* shard_library_version();
#endif

namespace shard {

namespace {

constexpr std::array kKnown{
    KnownFormat{"hdf5", "libshard_hdf5.so", kHdf5Suffixes, "libhdf5-dev and libseccomp-dev", "libhdf5", "libhdf5-103-1",
                is_hdf5_source},
};

std::string path_of(const KnownFormat& format) { return plugin_path(kKnown.data(), format.library); }

/// The entries of a plug-in that is linked into the program.
struct InsidePlugin {
  std::string_view library;
  AddFormatsOfPlugin add;
  LibraryVersion version;
};
#ifdef SHARD_HDF5_INSIDE
constexpr std::array kInside{InsidePlugin{"libshard_hdf5.so", shard_formats_3, shard_library_version}};
#else
constexpr std::array<InsidePlugin, 0> kInside{};
#endif

const InsidePlugin* inside(const KnownFormat& format) {
  const auto found = std::ranges::find(kInside, format.library, &InsidePlugin::library);
  return found == kInside.end() ? nullptr : &*found;
}

/// The version of its library that a plug-in reports; empty if it cannot be opened or does not report one.
std::string library_version_of(const KnownFormat& format) {
  if (const InsidePlugin* const plugin = inside(format); plugin != nullptr) return plugin->version();
  const SharedLibrary library(path_of(format));
  void* const entry = library.is_open() ? library.find(kLibraryVersionEntry) : nullptr;
  return entry == nullptr ? std::string() : reinterpret_cast<LibraryVersion>(entry)();
}

}  // namespace

std::span<const KnownFormat> known_formats() { return kKnown; }

bool is_installed(const KnownFormat& format) {
  if (inside(format) != nullptr) return true;
  return is_file_there(path_of(format));
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
  if (const InsidePlugin* const plugin = inside(format); plugin != nullptr) return plugin->add(&register_format);
  try {
    load_format_plugin(path_of(format));
  } catch (Error& error) {
    const bool lacks_library = !format.needs.empty() && error.why().starts_with(format.needs);
    if (lacks_library) error.hint(fmt::format("install the Debian package {}", format.package));
    throw;
  }
}

std::vector<std::pair<std::string, std::string>> plugin_library_versions() {
  std::vector<std::pair<std::string, std::string>> versions;
  for (const KnownFormat& format : kKnown) {
    if (format.needs.empty() || !is_installed(format)) continue;
    if (std::string version = library_version_of(format); !version.empty()) {
      versions.emplace_back(format.needs, std::move(version));
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
      continue;  // format_named() reports the reason when one of its formats is requested.
    }
  }
}

}  // namespace shard
