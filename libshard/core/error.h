/// \file
/// The one exception type that crosses a libshard header.
///
/// An Error says what is wrong, where, what was expected and what was found, and what to do about it. Who catches it
/// acts on `code()` only; the rest is for people and for `shardctl.error/1`.
#pragma once

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

namespace shard {

/// What went wrong, as far as a caller or a script may act on it.
enum class ErrorCode {
  kInvalidArgument,  ///< The request makes no sense; fix the command.          exit 2
  kNotFound,         ///< A named file, tensor or chunk is absent or unreadable. exit 3
  kCorruption,       ///< Bytes contradict their metadata, or are refused.       exit 4
  kExists,           ///< The output is there already, or overlaps the source.   exit 5
  kResource,         ///< Disk full, memory limit, output permission or I/O.     exit 6
  kPeer,             ///< Another rank failed, or the group broke.               exit 7
  kUnsupported,      ///< Valid request that this build or format cannot do.     exit 8
  kInterrupted,      ///< SIGINT or SIGTERM asked for the end.                   exit 130 or 143
  kInternal,         ///< Something that cannot be: a bug.                       exit 70
};

/// The code's name, for example "corruption": the `kind` of a `shardctl.error/1` that has no closer one.
std::string_view code_name(ErrorCode code);

/// See the file comment. The fluent setters return the error itself, so that one expression builds and throws it:
///
///     throw Error(ErrorCode::kCorruption, "header ends after the file").in_file(path).expected(812).found(600);
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}

  ErrorCode code() const noexcept { return code_; }
  const std::string& file() const noexcept { return file_; }      ///< Empty where none applies.
  const std::string& tensor() const noexcept { return tensor_; }  ///< Empty where none applies.
  const std::string& why() const noexcept { return why_; }
  const std::string& hint() const noexcept { return hint_; }
  const std::string& expected() const noexcept { return expected_; }
  const std::string& found() const noexcept { return found_; }
  std::optional<int> rank() const noexcept { return rank_; }
  /// One of the `kind`s of `shardctl.verify/1` ("truncated", "gap", ...); empty where none applies.
  const std::string& kind() const noexcept { return kind_; }

  Error& in_file(std::string_view path);  ///< Sets the file unless one is set: the innermost knows best.
  Error& replace_file(std::string_view path);  ///< For a path that means nothing to the caller, as a temporary one.
  Error& of_tensor(std::string_view name);
  Error& because(std::string_view why);
  Error& hint(std::string_view hint);
  Error& expected(std::string_view text);
  Error& expected(std::int64_t number);
  Error& found(std::string_view text);
  Error& found(std::int64_t number);
  Error& of_rank(int rank);
  Error& of_kind(std::string_view kind);

 private:
  ErrorCode code_;
  std::optional<int> rank_;
  std::string file_, tensor_, why_, hint_, expected_, found_, kind_;
};

}  // namespace shard
