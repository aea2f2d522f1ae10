/// \file
/// What a caller could ask for instead, when a request fails: a closed set that each front end puts into its own words
/// (a command line as options, a program as fields of its request).
#pragma once

#include <cstdint>
#include <string>

namespace shard {

enum class Remedy : std::uint8_t {
  kAddPrefix,           ///< Give names a prefix.
  kCast,                ///< Convert the tensor named `argument` to another dtype.
  kExclude,             ///< Leave out the tensor or object named `argument`.
  kRename,              ///< Rename the tensor or object named `argument`.
  kDropObjects,         ///< Leave out all objects.
  kOpaqueGlobals,       ///< Read values of unknown classes as opaque objects.
  kReadAs,              ///< State the source's format: `argument`.
  kWriteAs,             ///< Write the format `argument`.
  kStateLayout,         ///< State how the source's tensors were cut, by a layout document.
  kStateRanks,          ///< State how many ranks wrote the source.
  kCutTensors,          ///< Choose a layout that cuts tensors: ranks, mesh, layout document, another checkpoint's.
  kOneBoxPerRank,       ///< Choose a layout of one box a rank.
  kUseMesh,             ///< Choose a mesh with placements.
  kSpreadFiles,         ///< Spread whole tensors over several files.
  kHoldAs,              ///< Let the files of ranks hold `argument`: "sharded_tensor", "dtensor" or "plain".
  kNameFolder,          ///< Name a folder as the destination.
  kReplaceDestination,  ///< Replace the destination as a whole.
  kMoreMemory,          ///< Allow more memory.
  kUseBackend,          ///< Use the communication backend `argument`.
  kIgnoreLauncher,      ///< Ignore the launcher's environment variables.
  kNameLauncher,        ///< State which launcher's environment variables count.
  kNameRendezvous,      ///< State where rank 0 can be reached.
  kNameRank,            ///< State rank, number of ranks and where rank 0 can be reached. `argument`: where the rank is.
  kReadFolder,          ///< Read the folder or file `argument` in place of the source.
  kNameLike,            ///< Name another checkpoint of the same job.
  kNameReference,       ///< Name a folder with the model's config.json.
  kStateVariable,       ///< State the number of a map's variable: `argument` is its name.
  kReadFiles,           ///< Read the files that the shell pattern `argument` matches; '*' in its last component is one.
  kUnpack,              ///< Unpack the source with `argument`: "tar", "gzip", "zstd", "xz", "bzip2", or "unzip MEMBER".
};
inline constexpr int kRemedyCount = static_cast<int>(Remedy::kUnpack) + 1;

/// A remedy with what it applies to; `argument` is empty where the remedy says that it takes none.
struct Suggestion {
  Remedy remedy;
  std::string argument{};

  friend bool operator==(const Suggestion&, const Suggestion&) = default;
};

}  // namespace shard
