/// \file
/// Format: one format's entry in the registry, and the arguments of its functions.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "libshard/catalog/layouts/layout.h"
#include "libshard/catalog/layouts/placement.h"
#include "libshard/catalog/rank_paths.h"
#include "libshard/catalog/targets/format_traits.h"
#include "libshard/checkpoint/reader.h"
#include "libshard/checkpoint/writer.h"
#include "libshard/core/error.h"
#include "libshard/core/findings.h"
#include "libshard/io/source_store.h"

namespace shard {

enum class MapContainer : std::uint8_t;  // See libshard/map/documents/document.h.

/// A checkpoint's place: a file, a folder, or several files of one checkpoint.
///
/// Detection and readers ask the store for the same listings and statuses again and again. Give them a WatchedStore,
/// which asks its own store once.
struct Source {
  const SourceStore* store = nullptr;
  std::vector<std::string> paths;
};

/// True if the source is one folder.
inline bool is_one_folder(const Source& source) {
  return source.paths.size() == 1 && source.store->is_folder(source.paths.front());
}

/// A choice of how a format reads or writes, which is left to the user.
struct FormatOption {
  std::string_view name;                    ///< "weights".
  std::span<const std::string_view> words;  ///< The first one is the default.
  std::string_view help;                    ///< One line that explains the words.
  /// The formats with this choice, for messages: "DeepSpeed checkpoints", or a format's name.
  std::string_view owners;
  std::string_view others{};  ///< The reason why other formats lack it, if it needs an explanation.
};

/// The chosen words, by the option's name. A missing option has its default.
using FormatChoices = std::map<std::string, std::string, std::less<>>;

/// The word for `option`. \pre a word in `choices` is one of the option's
std::string_view choice(const FormatChoices& choices, const FormatOption& option);

struct OpenOptions {
  Findings* findings = &throwing_findings();
  int threads = 1;              ///< The number of threads that read long metadata.
  bool opaque_globals = false;  ///< Classes outside the list become opaque values instead of a refusal.
  /// Read only names and shapes. Tensors that a format would have to find inside objects are not listed.
  bool metadata_only = false;
  /// The number of ranks that must have written the checkpoint, if the user knows it and the format does not record it.
  std::optional<std::int64_t> ranks_expected;
  /// For repair: a different checkpoint of the same job and format, used if the source's own metadata does not identify
  /// its tensors. Null: there is none.
  const Source* like = nullptr;
  FormatChoices choices{};  ///< The choices among Format::read_options.
  /// Plain tensors in files of ranks differ between ranks; a model map will define how they fit together.
  bool own_tensors = false;
  const RankPaths* rank_paths = nullptr;  ///< With own_tensors: the list of files. The source is their folder.
  const MeshLayout* layout = nullptr;     ///< A layout document for files that do not record how tensors were sharded.
};

struct WriteOptions {
  bool single_file = false;  ///< DST is one file, not a folder.
  /// For a single file: DST's last component. For a folder: the prefix of the names of weight files ("adapter_model");
  /// empty: the format's usual one.
  std::string base_name{};
  std::optional<RankFiles> rank_files{};  ///< The content of files of ranks.
  /// For torch, with several files without an index: the keys under which each file stores its tensors.
  std::vector<std::string> root{};
  FormatChoices choices{};  ///< The choices among Format::write_options.
};

/// A rewrite of a whole source, which changes only its distribution over ranks or its arrangement.
struct Rewrite {
  std::unique_ptr<Reader> reader;  ///< Lists everything that the target takes. It must outlive the writer.
  Catalog target;                  ///< Not yet placed.
  std::unique_ptr<Writer> writer;
};

struct RewriteOptions {
  std::optional<std::int64_t> ranks{};  ///< Empty: as many as the source has.
};

struct Format {
  FormatTraits traits;
  /// Suffixes of single-file destinations: ".safetensors"; empty: folders only.
  std::span<const std::string_view> suffixes;
  /// Names of the formats whose files this one uses. A source that both recognise belongs to this format.
  std::span<const std::string_view> supersedes{};
  /// `detect` also accepts files of other kinds of checkpoints. So the others are tried first, and the files of a
  /// folder must form one set by their names.
  bool is_guessed = false;
  /// A folder that no format recognises may be a damaged one of this format if a name in it has one of the suffixes.
  bool suffixes_tell_folders = true;
  /// Suffix of the weights in a folder of this format that the loaders of Hugging Face's libraries open. Empty: none.
  std::string_view loader_suffix{};
  /// The format of each file by itself, if every rank has one with tensors of its own. Empty: this format.
  std::string_view file_format{};
  /// This format reads model maps whose files of ranks have this container.
  std::optional<MapContainer> map_container{};
  bool objects_apart = true;      ///< An object that cannot be read does not affect other objects.
  bool has_rank_kinds = false;    ///< WriteOptions::rank_files selects the content of its files of ranks.
  bool ranks_may_differ = false;  ///< Ranks' copies of a tensor are independent and may differ.
  /// Choices of the user. Options with one name are identical in all formats that have them.
  std::span<const FormatOption> read_options{}, write_options{};
  /// True if the content identifies this format; the suffix is never enough. Reads at most a few KiB.
  bool (*detect)(const Source& source);
  /// \throws Error kCorruption, kNotFound, kUnsupported
  std::unique_ptr<Reader> (*open)(const Source& source, const OpenOptions& options);
  std::unique_ptr<Writer> (*make_writer)(const WriteOptions& options);  ///< Null: see `rewrite`.
  /// The traits for these options, if they depend on them; null: always `traits`.
  FormatTraits (*traits_for)(const WriteOptions& options) = nullptr;
  /// For formats whose files contain more than names and tensors can express: rewrites one source of the format
  /// `rewrites` completely. A format without it and without make_writer is read only. \throws Error  as `open`;
  /// kUnsupported
  Rewrite (*rewrite)(const Source& source, const OpenOptions& open, const RewriteOptions& options) = nullptr;
  std::string_view rewrites{};
  /// For a guessed format: the names of the files in the folder `source` that may be those of ranks.
  std::vector<std::string> (*likely_rank_files)(const Source& source) = nullptr;
  /// The error for a path that some format would accept by mistake, although it is a part of a checkpoint of this
  /// format, or one that this format only writes. Called before `detect` of any format. Null: no such path exists.
  std::optional<Error> (*refuse_part)(const SourceStore& store, const std::string& path) = nullptr;
  /// The error for a path that no format recognises, although its names are those of this format. Null: as above.
  std::optional<Error> (*explain_refusal)(const SourceStore& store, const std::string& path) = nullptr;

  bool is_written() const { return make_writer != nullptr || rewrite != nullptr; }
};

/// The content that `format` can store when it is written with `options`.
FormatTraits traits_of(const Format& format, const WriteOptions& options);

/// A writer of `format`. \throws Error kInvalidArgument  it writes only folders, and one file is requested. \pre
/// format.make_writer is not null
std::unique_ptr<Writer> writer_of(const Format& format, const WriteOptions& options);

}  // namespace shard
