/// \file Alternatives to a failed request: a closed set that each front end puts into its own terms (a command line as
///   options, a program as fields of its request).
#pragma once

#include <cstdint>
#include <string>

namespace shard {

enum class Remedy : std::uint8_t {
  kAddPrefix,           ///< Give names a prefix.
  kCast,                ///< Convert the tensor named `argument` to a different dtype.
  kExclude,             ///< Exclude the tensor or object named `argument`.
  kRename,              ///< Rename the tensor or object named `argument`.
  kDropObjects,         ///< Exclude all objects.
  kOpaqueGlobals,       ///< Read values of unknown classes as opaque objects.
  kReadAs,              ///< State the source's format: `argument`.
  kWriteAs,             ///< Write the format `argument`.
  kStateLayout,         ///< State the sharding of the source's tensors, by a layout document.
  kStateRanks,          ///< State the number of ranks that wrote the source.
  kCutTensors,          ///< Choose a layout that shards tensors: ranks, a mesh, a layout document, or that of a
                        ///< different checkpoint.
  kOneBoxPerRank,       ///< Choose a layout of one box per rank.
  kUseMesh,             ///< Choose a mesh with placements.
  kSpreadFiles,         ///< Spread whole tensors over several files.
  kHoldAs,              ///< Store `argument` in per-rank files: "sharded_tensor", "dtensor" or "plain".
  kNameFolder,          ///< Name a folder as the destination.
  kReplaceDestination,  ///< Replace the destination as a whole.
  kMoreMemory,          ///< Allow more memory.
  kUseBackend,          ///< Use the communication backend `argument`.
  kIgnoreLauncher,      ///< Ignore the launcher's environment variables.
  kNameLauncher,        ///< State the launcher whose environment variables are valid.
  kNameRendezvous,      ///< State the address of rank 0.
  kNameRank,            ///< State the rank, the number of ranks and the address of rank 0. `argument`: the source of
                        ///< the rank.
  kReadFolder,          ///< Read the folder or file `argument` in place of the source.
  kNameLike,            ///< Name a different checkpoint of the same job.
  kNameReference,       ///< Name a folder with the model's config.json.
  kStateVariable,       ///< State the number of a map's variable: `argument` is its name.
  kReadFiles,           ///< Read the files that the shell pattern `argument` matches; '*' in its last component is one.
  kUnpack,              ///< Unpack the source with `argument`: "tar", "gzip", "zstd", "xz", "bzip2", or "unzip MEMBER".
};
inline constexpr int kRemedyCount = static_cast<int>(Remedy::kUnpack) + 1;

/// A remedy and its argument, which is empty if the remedy documents none.
struct Suggestion {
  Remedy remedy;
  std::string argument{};

  friend bool operator==(const Suggestion&, const Suggestion&) = default;
};

}  // namespace shard
