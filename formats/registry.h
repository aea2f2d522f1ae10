/// \file
/// The formats of this program.
///
/// The built-in formats exist from the start. Plug-ins add theirs when they are loaded (formats/plugins.h): when one of
/// their formats is requested, or when no other format recognises a source.
/// Threads: all functions may be called by several threads at once.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/format.h"

namespace shard {

/// All formats that are loaded, the built-in ones first.
std::vector<const Format*> formats();
/// The names of all usable formats: those loaded, and those of installed plug-ins.
std::vector<std::string> format_names();

/// Adds a format. Adding the same object again has no effect. \pre `format` lives until the program ends.
/// \throws Error kUnsupported  a different format has its name.
void register_format(const Format& format);

/// \throws Error kInvalidArgument  the name is unknown (suggests the nearest one); kUnsupported  it is known, but this
///   build lacks the format, or its plug-in is unusable.
const Format& format_named(std::string_view name);

/// All formats' choices for reading or for writing (`&Format::read_options`, `&Format::write_options`), without
/// duplicates.
std::vector<FormatOption> format_options(std::span<const FormatOption> Format::*of);
/// True if `format` has that choice.
bool has_option(std::span<const FormatOption> options, std::string_view name);

/// The format whose folders Hugging Face's loaders open if their weights have that suffix. \pre there is one
const Format& loader_format(std::string_view suffix);
/// The format of files of ranks that a model map describes. \pre there is one
const Format& map_format(MapContainer container);
/// The format of a single file of a rank, see Format::file_format.
const Format& file_format_of(const Format& format);
/// The format that supersedes `format` and recognises `source`; null if there is none.
const Format* superseding_format(const Source& source, const Format& format);

/// The name of the format whose single files have the suffix of `path` ("out/model.pt" is "torch"). Empty if there is
/// none, and for "out.pt/", because a trailing slash marks a folder. This build may lack the format.
std::string_view format_of_suffix(std::string_view path);
/// The suffixes that format_of_suffix knows: ".safetensors", ".pt", ...
std::vector<std::string_view> known_suffixes();

}  // namespace shard
