/// \file
/// Saves state of this process's memory as a checkpoint, alone or together with other ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "formats/state/rank_state.h"
#include "libshard/catalog/catalog.h"
#include "libshard/catalog/layouts/layout.h"
#include "libshard/ranks/group.h"

namespace shard::python {

/// This rank's state, and the memory of its tensors by tensor and box: elements in row-major order.
struct HeldState : checkpoint::RankState {
  std::vector<std::vector<std::span<const std::byte>>> memory;
};

struct SaveRequest {
  std::string path;
  std::string to;  ///< The format's name; empty: by the suffix of the path, or that of `like`.
  /// The checkpoint whose boxes and ranks the output has; null: those of the state, or whole tensors if the format has
  /// no others. Outlives the call.
  const Catalog* like = nullptr;
  bool force = false, sync = true, manifest = false;
  bool numbered_lists = false;  ///< See checkpoint::MergeOptions.
  int threads = 1;
  std::int64_t max_memory_bytes = 64 << 20;
};

/// Writes the states of all ranks of `group` as one checkpoint, from their memory, without a copy in between. Each rank
/// writes its own pieces; one of the ranks that have a plain tensor writes it. The destination appears as a whole or
/// not at all. Tensors with one number in the tree are ties, which formats with shared storages keep. A collective.
/// \returns warnings, for example about values that the format cannot store
/// \throws Error  the same on all ranks: kInvalidArgument  ranks contradict one another, or the format is unknown or
///   contradicts the path's suffix; kExists; see run_copy_job. Threads: any. The memory must not change meanwhile.
std::vector<std::string> save(const HeldState& state, const SaveRequest& request, Group& group,
                              const std::stop_token& stop);

/// The name of the first class in a pickle that cannot be saved: one that is not pickle::is_known_global. Nothing if
/// there is none. \throws Error  see pickle::load
std::optional<std::string> unknown_class(std::string_view pickle);

/// The part of a DTensor on the rank at position `index` of its mesh.
/// \param placements  as parse_placement takes them, one per axis of the mesh
/// \throws Error kInvalidArgument, kUnsupported  see place
RankPiece local_part(std::span<const std::int64_t> shape, std::span<const std::int64_t> mesh,
                     const std::vector<std::string>& placements, std::int64_t index);

}  // namespace shard::python
