/// \file
/// Formats that are not built in: shared libraries beside libshard_formats.so, opened on demand.
///
/// A format that needs a large third-party library (HDF5) is a plug-in, so that a program that never uses it does not
/// load that library. known_formats() lists the formats and suffixes of each plug-in; its library may be missing. The
/// one-file program (SHARD_ONE_FILE) contains the plug-in for HDF5. The interface of plug-ins is C++, so a plug-in only
/// works with the library of its own build.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/format.h"

namespace shard {

/// The plug-in's only entry, with C linkage. The number in its name changes with Format and the types that Format uses.
/// It calls `add` for each of its formats, which live until the program ends.
inline constexpr char kFormatPluginEntry[] = "shard_formats_3";
using AddFormat = void (*)(const Format& format);
using AddFormatsOfPlugin = void (*)(AddFormat add);

/// An optional entry of a plug-in, with C linkage: the version of the third-party library, as it was loaded.
inline constexpr char kLibraryVersionEntry[] = "shard_library_version";
using LibraryVersion = const char* (*)();

/// A format that is not built in.
struct KnownFormat {
  std::string_view name;
  std::string_view library;                      ///< The plug-in that contains it.
  std::span<const std::string_view> suffixes{};  ///< Suffixes of single files.
  std::string_view built_with{};                 ///< The packages without which a build lacks the plug-in.
  /// The prefix of the file name of the library with which it is linked.
  std::string_view needs{};
  std::string_view package{};  ///< The Debian package of that library.
  /// Like Format::detect, without the plug-in; null if only the plug-in can detect it.
  bool (*detect)(const Source& source) = nullptr;
};
std::span<const KnownFormat> known_formats();

/// True if the plug-in of `format` is inside the program or installed. It may still be unusable.
bool is_installed(const KnownFormat& format);

/// Opens the plug-in at `path` and registers its formats; a second call for the same plug-in has no effect.
/// \throws Error kUnsupported  it cannot be opened (`why` is the dynamic loader's message), belongs to a different
///   version, or contains a format whose name is taken.
void load_format_plugin(const std::string& path);

/// Does the same for the plug-in of `format`, which is installed. If the library that it needs is missing, the error's
/// hint names the package.
void load_plugin_of(const KnownFormat& format);

/// Names (`needs`) and versions of the libraries with which installed plug-ins are linked. Plug-ins that cannot be
/// opened, or do not report a version, are skipped. Cost: opens the plug-ins.
std::vector<std::pair<std::string, std::string>> plugin_library_versions();

/// The known format that recognises the source's content, or null.
const KnownFormat* known_format_of(const Source& source);

/// Loads all installed plug-ins. Unusable ones are skipped.
void load_installed_plugins();

}  // namespace shard
