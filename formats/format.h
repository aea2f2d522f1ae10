/// \file
/// Format: one format's entry in the registry, and what its functions are given.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/weights.h"
#include "libshard/catalog/format_traits.h"
#include "libshard/catalog/layout.h"
#include "libshard/catalog/placement.h"
#include "libshard/catalog/rank_paths.h"
#include "libshard/checkpoint/reader.h"
#include "libshard/checkpoint/writer.h"
#include "libshard/core/findings.h"
#include "libshard/io/source_store.h"

namespace shard {

/// Where a checkpoint lies: a file, a folder, or several files of one checkpoint.
struct Source {
  const SourceStore* store = nullptr;
  std::vector<std::string> paths;
};

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
  Weights weights = Weights::kMasters;  ///< For formats that have both.
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
  std::optional<RankFiles> rank_files{};  ///< torch-ranks: what the files shall hold.
  /// torch, of several files without an index: keys under which each holds its tensors.
  std::vector<std::string> root{};
  bool common_file = false;  ///< megatron-dist: common.pt, as core up to 0.18, instead of an item.
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

}  // namespace shard
