/// \file
/// Opening what the user named, and choosing from it.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "apps/shardctl/request/request.h"
#include "apps/shardctl/session/log.h"
#include "apps/shardctl/session/session.h"
#include "formats/registry.h"
#include "libshard/catalog/layouts/layout.h"
#include "libshard/catalog/selection/selection.h"
#include "libshard/repair/salvage.h"

namespace shard::app {

/// With more names than this, searching for a similar one would be noticeably slow.
inline constexpr std::size_t kMaxSuggestNames = 20'000;

struct OpenSource {
  std::string label;  ///< As the user wrote it; several paths joined by spaces.
  std::vector<std::string> paths;
  const Format* format = nullptr;
  std::unique_ptr<MeshLayout>
      layout;  ///< From --layout, where it is the source's. The reader may use it while it lives.
  std::optional<RankPaths> rank_paths;  ///< Files that the map to undo names.
  std::unique_ptr<Reader> reader;
  bool opaque_globals = false;  ///< As it was opened, see OpenOptions.
  bool is_mapped = false;       ///< A model map was undone.

  const Catalog& catalog() const { return reader->catalog(); }
};

/// How a verb opens a source.
struct OpenRequest {
  bool metadata_only = false;          ///< See OpenOptions.
  bool may_lack_ranks = false;         ///< --ranks-expected is ignored where no ranks wrote the checkpoint.
  bool may_lack_choices = false;       ///< Choices that the format does not leave are ignored: see check_choices.
  bool of_other_ranks = false;         ///< With --local-input: the files need not be those of this job's ranks.
  Salvage* salvage = nullptr;          ///< Opened for repair: what cannot be read is lost, see without_losses.
  const SourceStore* store = nullptr;  ///< To read from instead of the session's.
  bool keeps_map = false;              ///< ReadRequest::map is not undone.
  /// With ReadRequest::map: a name that this leaves out needs no rule of the map. Null: each needs one.
  const SelectionOptions* selection = nullptr;
  const Source* like = nullptr;               ///< See OpenOptions.
  Findings* findings = &throwing_findings();  ///< See OpenOptions. Of other ranks than expected it is told too.
};

/// \throws Error kInvalidArgument  the command line has a choice of reading that none of the sources offers
void check_choices(const ReadRequest& read, std::initializer_list<const OpenSource*> sources);

/// \throws Error kNotFound  a path of SRC is not there
void check_exists(const Session& session, const ReadRequest& read);

/// Opens the checkpoint of `read.paths` as --from says, or as its content shows. Reads metadata only.
/// \throws Error kCorruption  more ranks wrote it than --ranks-expected says, or with --local-input other ranks than
/// this job's; kInvalidArgument  no ranks wrote it.
OpenSource open_source(const Session& session, const ReadRequest& read, Log& log, OpenRequest request = {});

/// Reads a layout document. \throws Error kNotFound, kInvalidArgument, kUnsupported
MeshLayout read_layout(const Session& session, const std::string& path);

/// What a verb that only reads says of its source: what is left out of it. Other files of its folder are not mentioned.
void warn_of_source(const Session& session, const OpenSource& source);

/// `select`, or everything unchanged where the options choose nothing (then names may repeat).
/// \throws Error kInvalidArgument  an --include that matches nothing, with the nearest name.
Selection choose(const Catalog& catalog, const SelectionOptions& options);

/// \throws Error kInvalidArgument  a glob of `include` matches nothing in any of the catalogs, with the nearest name.
void check_include(const std::vector<const Catalog*>& catalogs, const SelectionOptions& options);

/// Indices of the chosen tensors in the source, for Reader::locate.
std::vector<std::uint32_t> source_indices(std::span<const SelectedTensor> tensors);

}  // namespace shard::app
