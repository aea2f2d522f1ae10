/// \file Error: the only exception type that crosses a libshard header.
///
/// An Error records what failed, where, the expected and the actual value, and a remedy. Handlers branch only on
/// `code()`. The other fields are for display and for `shardctl.error/1`. Names from files may have any length, so
/// texts are stored as clipped() shortens them.
#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "libshard/core/finding_kind.h"

namespace shard {

// Alternatives to a failed request: a closed set that each front end puts into its own terms (a command line as
// options, a program as fields of its request).

enum class Remedy : std::uint8_t {
  kAddPrefix,           ///< Give names a prefix.
  kCast,                ///< Convert the tensor named `argument` to a different dtype.
  kExclude,             ///< Exclude the tensor or object named `argument`.
  kExcludeMatching,     ///< Exclude all tensors and objects that the glob `argument` matches.
  kRename,              ///< Rename the tensor or object named `argument`.
  kDropObjects,         ///< Exclude all objects.
  kOpaqueGlobals,       ///< Read values of unknown classes as opaque objects.
  kReadAs,              ///< State the source's format: `argument`.
  kWriteAs,             ///< Write the format `argument`.
  kStateLayout,         ///< State the sharding of the source's tensors, by a layout document.
  kStateRanks,          ///< State the number of ranks that wrote the source.
  kCutTensors,          ///< Choose a layout that shards tensors: ranks, a mesh, a document, a checkpoint's.
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
  kNameRank,            ///< State rank, number of ranks and address of rank 0. `argument`: its source.
  kReadFolder,          ///< Read the folder or file `argument` in place of the source.
  kNameLike,            ///< Name a different checkpoint of the same job.
  kNameReference,       ///< Name a folder with the model's config.json: `argument`, which may be empty.
  kStateVariable,       ///< State the number of a map's variable: `argument` is its name.
  kMatchNames,          ///< List the source's names, and select or rename them.
  kFuseExperts,         ///< Convert the base model of an adapter to fused experts.
  kDequantize,          ///< Read quantized weights as plain tensors.
  kReadCopies,          ///< Read the module's 16-bit copies of DeepSpeed's weights.
  kOneAdapter,          ///< Write one of several adapters to a folder, and read that.
  kNameRegion,          ///< State the region of the bucket: `argument`.
  kNameEndpoint,        ///< State the address of the object store.
  kAnonymous,           ///< Send no credentials.
  kSendCredentials,     ///< Send credentials.
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

/// The category of a failure; callers and scripts branch on it.
enum class ErrorCode {
  kInvalidArgument,  ///< The request is invalid; fix the command.          exit 2
  kNotFound,         ///< A named file, tensor or chunk is absent or unreadable. exit 3
  kCorruption,       ///< Bytes contradict their metadata, or are refused.       exit 4
  kExists,           ///< The output already exists, or overlaps the source.   exit 5
  kResource,         ///< Disk full, memory limit, output permission or I/O.     exit 6
  kPeer,             ///< Another rank failed, or the group broke.               exit 7
  kUnsupported,      ///< Valid request that this build or format cannot do.     exit 8
  kInterrupted,      ///< Stopped by SIGINT, SIGTERM or SIGHUP.      exit 130, 143 or 129
  kInternal,         ///< A broken invariant: a bug.                       exit 70
};

/// The code's name, for example "corruption". It is the `kind` of a `shardctl.error/1` that has no more specific one.
std::string_view code_name(ErrorCode code);

/// See the file comment. The fluent setters return the error itself, so that one expression builds and throws it:
///
///     throw Error(ErrorCode::kCorruption, "header ends after the file").in_file(path).expected(812).found(600);
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message);

  ErrorCode code() const noexcept { return code_; }
  const std::string& file() const noexcept { return file_; }      ///< Empty if none applies.
  const std::string& tensor() const noexcept { return tensor_; }  ///< Empty if none applies.
  const std::string& why() const noexcept { return why_; }
  const std::string& hint() const noexcept { return hint_; }
  const std::string& expected() const noexcept { return expected_; }
  const std::string& found() const noexcept { return found_; }
  std::optional<int> rank() const noexcept { return rank_; }
  /// The kind of defect in the checkpoint. Empty if the checkpoint is not at fault.
  std::optional<FindingKind> kind() const noexcept { return kind_; }
  /// Alternative requests, best first. Shown after `hint` if both are set.
  const std::vector<Suggestion>& suggestions() const noexcept { return suggestions_; }

  /// Sets the file unless one is already set, because the innermost caller knows best.
  Error& in_file(std::string_view path);
  /// Replaces a path that is meaningless to the caller, such as a temporary one.
  Error& replace_file(std::string_view path);
  Error& of_tensor(std::string_view name);
  Error& because(std::string_view why);
  Error& hint(std::string_view hint);
  Error& expected(std::string_view text);
  Error& expected(std::int64_t number);
  Error& found(std::string_view text);
  Error& found(std::int64_t number);
  Error& of_rank(int rank);
  Error& of_kind(std::optional<FindingKind> kind);
  Error& suggest(Remedy remedy, std::string_view argument = {});  ///< Appends an alternative.
  /// The same error with a different message.
  Error with_message(const std::string& message) const;

 private:
  ErrorCode code_;
  std::optional<int> rank_;
  std::string file_, tensor_, why_, hint_, expected_, found_;
  std::optional<FindingKind> kind_;
  std::vector<Suggestion> suggestions_;
};

/// False for failures that are not about a file's content: an interruption, a failure of another rank, too little
/// memory, too many open files. Code that treats an error as a sign of damage or of an unknown format must rethrow
/// these.
inline bool is_about_content(const Error& error) {
  const ErrorCode code = error.code();
  return code != ErrorCode::kInterrupted && code != ErrorCode::kPeer && code != ErrorCode::kResource;
}

/// Converts any exception to an Error. An Error is unchanged, failed allocations and thread creation become kResource,
/// and everything else becomes kInternal.
Error as_error(const std::exception_ptr& failure);

}  // namespace shard
