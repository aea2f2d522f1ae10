/// \file
/// The list of formats, written out, and what a path holds.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "libshard/catalog/target.h"
#include "libshard/io/findings.h"
#include "libshard/io/reader.h"

namespace shard {

/// Where a checkpoint lies: a file, a folder, or several files of one checkpoint.
struct Source {
  FileSystem* fs = nullptr;
  std::vector<std::string> paths;
};

struct OpenOptions {
  Findings* findings = &throwing_findings();
  bool opaque_globals = false;  ///< Classes outside the list become opaque values instead of a refusal.
  /// A look at names and shapes alone: tensors that a format would have to look for inside objects stay unlisted.
  bool metadata_only = false;
  /// The number of ranks that must have written the checkpoint, where the user knows it and the format cannot say.
  std::optional<std::int64_t> ranks_expected;
  const MeshLayout* layout = nullptr;  ///< A layout document for files that do not say how tensors were cut.
};

struct WriteOptions {
  bool single_file = false;             ///< DST is one file, not a folder.
  std::string base_name{};              ///< DST's last component, for formats that store it.
  std::optional<RankFiles> rank_files{};  ///< torch-ranks: what the files shall hold.
};

struct Format {
  FormatTraits traits;
  std::span<const std::string_view> suffixes;  ///< Of single-file DSTs: ".safetensors"; empty: folders only.
  /// True when the content says that it is this format; never by suffix alone. Reads at most a few KiB.
  bool (*detect)(const Source& source);
  /// \throws Error kCorruption, kNotFound, kUnsupported
  std::unique_ptr<Reader> (*open)(const Source& source, const OpenOptions& options);
  std::unique_ptr<Writer> (*make_writer)(const WriteOptions& options);
  /// The traits under these options, where they depend on them; null: always `traits`.
  FormatTraits (*traits_for)(const WriteOptions& options) = nullptr;
};

/// What `format` can hold when it is written with `options`.
FormatTraits traits_of(const Format& format, const WriteOptions& options);

/// All formats of this build.
std::span<const Format> formats();
/// \throws Error kInvalidArgument  an unknown name (with the nearest one); kUnsupported  a known one not in this build.
const Format& format_named(std::string_view name);

/// What `source` is.
/// \throws Error kNotFound  it does not exist; kCorruption  it fits none or two, naming them; kUnsupported  it is a
///   known kind that this build cannot read (ByteCheckpoint, TorchScript, GGUF, ...), by name.
const Format& detect_format(const Source& source);

}  // namespace shard
