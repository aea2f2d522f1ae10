/// \file
/// Format: one format's entry in the registry, and what its functions are given.
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

#include "libshard/catalog/format_traits.h"
#include "libshard/catalog/layout.h"
#include "libshard/catalog/placement.h"
#include "libshard/catalog/rank_paths.h"
#include "libshard/checkpoint/reader.h"
#include "libshard/checkpoint/writer.h"
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
  return source.paths.size() == 1 && source.store->status(source.paths.front()).kind == FileKind::kFolder;
}

/// A choice that one format leaves to the user: how it is read, or how it is written.
struct FormatOption {
  std::string_view name;                    ///< "weights".
  std::span<const std::string_view> words;  ///< The first is the default.
  std::string_view help;                    ///< One line; says what the words mean.
  std::string_view owners;                  ///< What has this choice: "DeepSpeed checkpoints", or a format's name.
  std::string_view others{};                ///< Why others do not have it, if that needs a word.
};

/// The chosen words, by the option's name. An option that is absent has its default.
using FormatChoices = std::map<std::string, std::string, std::less<>>;

/// The word for `option`. \pre a word in `choices` is one of the option's
std::string_view choice(const FormatChoices& choices, const FormatOption& option);

struct OpenOptions {
  Findings* findings = &throwing_findings();
  bool opaque_globals = false;  ///< Classes outside the list become opaque values instead of a refusal.
  /// A look at names and shapes alone: tensors that a format would have to look for inside objects stay unlisted.
  bool metadata_only = false;
  /// The number of ranks that must have written the checkpoint, where the user knows it and the format cannot say.
  std::optional<std::int64_t> ranks_expected;
  /// For repair: another checkpoint of the same job and format, where the source's own metadata does not say which
  /// tensor is which. Null: there is none.
  const Source* like = nullptr;
  FormatChoices choices{};  ///< Of Format::read_options.
  /// Plain tensors in files of ranks are each rank's own: a model map will say how they fit together.
  bool own_tensors = false;
  const RankPaths* rank_paths = nullptr;  ///< With own_tensors: which files there are. The source is their folder.
  const MeshLayout* layout = nullptr;     ///< A layout document for files that do not say how tensors were cut.
};

struct WriteOptions {
  bool single_file = false;  ///< DST is one file, not a folder.
  /// A single file: DST's last component. A folder: how names of files of weights begin ("adapter_model"); empty: as
  /// the format usually calls them.
  std::string base_name{};
  std::optional<RankFiles> rank_files{};  ///< What files of ranks shall hold.
  /// torch, of several files without an index: keys under which each holds its tensors.
  std::vector<std::string> root{};
  FormatChoices choices{};  ///< Of Format::write_options.
};

/// The whole of a source, to be written as it was but for how it is spread or arranged.
struct Remake {
  std::unique_ptr<Reader> reader;  ///< Lists all that the target takes. It must outlive the writer.
  Catalog target;                  ///< Not yet placed.
  std::unique_ptr<Writer> writer;
};

struct RemakeOptions {
  std::optional<std::int64_t> ranks{};  ///< None: as many as the source has.
};

struct Format {
  FormatTraits traits;
  std::span<const std::string_view>
      suffixes;  ///< Suffixes of single-file destinations: ".safetensors"; empty: folders only.
  /// Names of the formats of whose files this one consists. A source that both recognise is this format's.
  std::span<const std::string_view> supersedes{};
  /// `detect` accepts files that other kinds of checkpoints consist of too. So those are looked for first, and the
  /// files of a folder must be one set by their names.
  bool is_guessed = false;
  /// A folder that no format recognises may be a damaged one of this format if a name in it has one of the suffixes.
  bool suffixes_tell_folders = true;
  /// Suffix of the weights in a folder of this format that the loaders of Hugging Face's libraries open. Empty: none.
  std::string_view loader_suffix{};
  /// The format of each file by itself, if every rank has one with tensors of its own. Empty: this format.
  std::string_view file_format{};
  /// Model maps whose files of ranks have this container are read by this format.
  std::optional<MapContainer> map_container{};
  bool objects_apart = true;      ///< An object that cannot be read hides no other object.
  bool has_rank_kinds = false;    ///< Its files of ranks hold what WriteOptions::rank_files says.
  bool ranks_may_differ = false;  ///< Ranks' copies of a tensor are their own, so that they may differ.
  /// Choices of the user. Options of one name are the same in all formats that have them.
  std::span<const FormatOption> read_options{}, write_options{};
  /// True when the content says that it is this format; never by suffix alone. Reads at most a few KiB.
  bool (*detect)(const Source& source);
  /// \throws Error kCorruption, kNotFound, kUnsupported
  std::unique_ptr<Reader> (*open)(const Source& source, const OpenOptions& options);
  std::unique_ptr<Writer> (*make_writer)(const WriteOptions& options);  ///< Null: see `remake`.
  /// The traits under these options, where they depend on them; null: always `traits`.
  FormatTraits (*traits_for)(const WriteOptions& options) = nullptr;
  /// For formats whose files hold more than names and tensors can say: writes one source of the format `remakes`, all
  /// of it. Without it and make_writer the format is read only. \throws Error  as `open`; kUnsupported
  Remake (*remake)(const Source& source, const OpenOptions& open, const RemakeOptions& options) = nullptr;
  std::string_view remakes{};

  bool is_written() const { return make_writer != nullptr || remake != nullptr; }
};

/// What `format` can hold when it is written with `options`.
FormatTraits traits_of(const Format& format, const WriteOptions& options);

/// A writer of `format`. \throws Error kInvalidArgument  it writes folders only, and one file is wanted. \pre
/// format.make_writer is not null
std::unique_ptr<Writer> writer_of(const Format& format, const WriteOptions& options);

}  // namespace shard
