/// \file
/// The formats of this program.
///
/// The built-in formats are there from the start; plug-ins add theirs when they are loaded (formats/plugins.h), which
/// happens when one of their formats is asked for, or when nothing else recognises a source.
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
/// The names of all formats that can be used: those loaded, and those of plug-ins that are installed.
std::vector<std::string> format_names();

/// Adds a format. \pre `format` lives until the program ends. Adding the same object again changes nothing.
/// \throws Error kUnsupported  another format has its name.
void register_format(const Format& format);

/// \throws Error kInvalidArgument  an unknown name (with the nearest one); kUnsupported  a known one that this build
///   lacks, or whose plug-in cannot be used.
const Format& format_named(std::string_view name);

/// All formats' choices of reading or of writing (`&Format::read_options`, `&Format::write_options`), each name once.
std::vector<FormatOption> format_options(std::span<const FormatOption> Format::*of);
/// True if `format` has that choice.
bool has_option(std::span<const FormatOption> options, std::string_view name);

/// The format whose folders Hugging Face's loaders open if their weights have that suffix. \pre there is one
const Format& loader_format(std::string_view suffix);
/// The format of files of ranks that a model map describes. \pre there is one
const Format& map_format(MapContainer container);
/// The format of one file of a rank, see Format::file_format.
const Format& file_format_of(const Format& format);
/// The format that supersedes `format` and recognises `source`; null: there is none.
const Format* superseding_format(const Source& source, const Format& format);

/// The name of the format whose single files have the suffix of `path` ("out/model.pt" is "torch"); empty where there
/// is none, and for "out.pt/": a trailing slash makes any name a folder. The format may be one that this build lacks.
std::string_view format_of_suffix(std::string_view path);
/// The suffixes that format_of_suffix knows: ".safetensors", ".pt", ...
std::vector<std::string_view> known_suffixes();

}  // namespace shard
