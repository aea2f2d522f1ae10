/// \file
/// Formats that are not built in: shared libraries beside libshard_formats.so, opened when they are needed.
///
/// A format that needs a large library of others (HDF5) is a plug-in, so that a program that never meets it does not
/// load that library. A plug-in is known here by the formats and suffixes that it brings; its file may be absent. In
/// the program as one file (SHARD_ONE_FILE) the one for HDF5 lies inside. Its interface is C++: it goes with the
/// library of its own build alone.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/format.h"

namespace shard {

/// The plug-in's one entry, with C linkage; the number in its name changes with Format and what Format refers to. It
/// calls `add` for each of its formats, which live until the program ends.
inline constexpr char kFormatPluginEntry[] = "shard_formats_3";
using AddFormat = void (*)(const Format& format);
using AddFormatsOfPlugin = void (*)(AddFormat add);

/// An entry that a plug-in may have, with C linkage: the version of the library that it is linked with, as it was
/// loaded.
inline constexpr char kLibraryVersionEntry[] = "shard_library_version";
using LibraryVersion = const char* (*)();

/// A format that is not built in.
struct KnownFormat {
  std::string_view name;
  std::string_view library;                        ///< The plug-in that brings it.
  std::span<const std::string_view> suffixes{};    ///< Suffixes of single files.
  std::string_view built_with{};                   ///< The packages without which a build lacks the plug-in.
  std::string_view needs{};                        ///< The library that it is linked with; its file begins so.
  std::string_view package{};                      ///< Debian's package of that.
  bool (*detect)(const Source& source) = nullptr;  ///< As Format::detect, without the plug-in; null: without one.
};
std::span<const KnownFormat> known_formats();

/// True where the plug-in of `format` is inside the program or installed, which may still be unusable.
bool is_installed(const KnownFormat& format);

/// Opens the plug-in at `path` and registers its formats; a second call for the same plug-in changes nothing.
/// \throws Error kUnsupported  it cannot be opened (`why`: what the dynamic loader says), belongs to a different
///   version, or brings a format of a name that another one has.
void load_format_plugin(const std::string& path);

/// The same for the plug-in of `format`, which is installed. Where the library that it needs is missing, the error's
/// hint names the package.
void load_plugin_of(const KnownFormat& format);

/// Names (`needs`) and versions of the libraries that installed plug-ins are linked with. Plug-ins that cannot be
/// opened, or do not say, are left out. Cost: opens the plug-ins.
std::vector<std::pair<std::string, std::string>> plugin_library_versions();

/// The known format whose content a source has, or null.
const KnownFormat* known_format_of(const Source& source);

/// Loads all installed plug-ins. Those that cannot be used are left out.
void load_installed_plugins();

}  // namespace shard
