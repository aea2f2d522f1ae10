/// \file
/// The load checks of per-rank files: every rank of one save, once.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "formats/torch_ranks/rank_file.h"
#include "libshard/catalog/layout.h"
#include "libshard/core/findings.h"

namespace shard::torch_ranks {

struct RankCheck {
  std::vector<std::string> names;      ///< The files' names as given, by RankFile::number.
  const MeshLayout* layout = nullptr;  ///< How plain slices were cut, or null.
  std::optional<std::int64_t> ranks_expected;
  bool counts_files = false;  ///< Nothing but the number of files says how many ranks there are.
};

/// Gives every file its rank (by its content, else a layout's files.path, else the only number that differs between the
/// names) and sorts them by it. Where the sink goes on, `files` loses those that do not fit the others.
/// Reports kNotFound    a rank is missing (kind missing_file).
/// Reports kCorruption  a rank twice, a rank past the world, files of saves of different sizes, more files than ranks,
///   another number than expected (kinds rank_mismatch, world_size_mismatch, extra_file).
/// \returns the world size.
/// \throws Error kInvalidArgument  nothing tells the ranks.
std::int64_t settle_ranks(std::vector<RankFile>& files, const RankCheck& check, const Catalog& catalog,
                          Findings& findings);

}  // namespace shard::torch_ranks
