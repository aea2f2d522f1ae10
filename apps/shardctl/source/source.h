/// \file
/// Opens the checkpoints that the user names, and selects tensors and objects from them.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "apps/shardctl/request/request.h"
#include "apps/shardctl/session/log.h"
#include "apps/shardctl/session/session.h"
#include "formats/open/source.h"
#include "formats/registry.h"
#include "libshard/catalog/selection/selection.h"
#include "libshard/repair/salvage.h"

namespace shard {
class ComputedReader;
}

namespace shard::app {

/// With more names, the search for a similar one would be noticeably slow.
inline constexpr std::size_t kMaxSuggestNames = 20'000;

/// Options for opening a source.
struct OpenRequest {
  bool metadata_only = false;          ///< See OpenOptions.
  bool may_lack_ranks = false;         ///< Ignore --ranks-expected if no ranks wrote the checkpoint.
  bool may_lack_choices = false;       ///< Ignore choices that the format does not offer: see check_choices.
  bool of_other_ranks = false;         ///< With --local-input: the files may belong to different ranks from this job's.
  Salvage* salvage = nullptr;          ///< For repair: receives the unreadable parts, which without_losses drops.
  const SourceStore* store = nullptr;  ///< Read from here instead of the session's store.
  bool keeps_map = false;              ///< Do not undo ReadRequest::map.
  /// With ReadRequest::map: names that it does not select need no rule in the map. Null: each name needs one.
  const SelectionOptions* selection = nullptr;
  const Source* like = nullptr;               ///< See OpenOptions.
  Findings* findings = &throwing_findings();  ///< See OpenOptions. Also receives an unexpected number of ranks.
};

/// \throws Error kInvalidArgument  the command line has a reading choice that none of the sources offers
void check_choices(const ReadRequest& read, std::span<const OpenSource* const> sources);

/// The environment for opening, for shard::open_source and model maps.
SourcePlace source_place(const Session& session);

/// SourceOptions::on_note of a session.
OnStep notes_of(const Session& session);

/// Calls shard::open_source, logs its steps, and checks the number of ranks and the choices of the command line.
/// \throws Error kCorruption  more ranks wrote it than --ranks-expected allows, or with --local-input different ranks
///   from this job's; kInvalidArgument  no ranks wrote it; kUnsupported  see check_operands.
OpenSource open_source(const Session& session, const ReadRequest& read, Log& log, OpenRequest request = {});

/// With --local-input, each computed tensor needs all its operands on one rank, the one that holds its first operand.
/// \throws Error kUnsupported  they are on different ranks
void check_operands(const Session& session, const ComputedReader& reader);

/// Warns of content that a reading verb skips in its source. Other files in the source's folder are not mentioned.
void warn_of_source(const Session& session, const OpenSource& source);

/// The selection of `options`, or everything unchanged if they select nothing in particular (names may then repeat).
/// \throws Error kInvalidArgument  see check_globs.
Selection choose(const Catalog& catalog, const SelectionOptions& options);
/// The same, but a glob may match nothing.
Selection choose_unchecked(const Catalog& catalog, const SelectionOptions& options);

/// \throws Error kInvalidArgument  a glob matches nothing in the catalogs: one in `include`, with the most similar
/// name,
///   or one in `exclude` with a comma, which is a list of globs by mistake.
void check_globs(const std::vector<const Catalog*>& catalogs, const SelectionOptions& options);

/// Indices of the selected tensors in the source, for Reader::locate.
std::vector<std::uint32_t> source_indices(std::span<const SelectedTensor> tensors);

}  // namespace shard::app
