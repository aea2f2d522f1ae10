#include "libshard/core/error.h"

namespace shard {

std::string_view code_name(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return "invalid_argument";
    case ErrorCode::kNotFound:
      return "not_found";
    case ErrorCode::kCorruption:
      return "corruption";
    case ErrorCode::kExists:
      return "exists";
    case ErrorCode::kResource:
      return "resource";
    case ErrorCode::kPeer:
      return "peer";
    case ErrorCode::kUnsupported:
      return "unsupported";
    case ErrorCode::kInterrupted:
      return "interrupted";
    case ErrorCode::kInternal:
      break;
  }
  return "internal";
}

Error& Error::in_file(std::string_view path) {
  if (file_.empty()) file_ = path;
  return *this;
}

Error& Error::replace_file(std::string_view path) {
  file_ = path;
  return *this;
}

Error& Error::of_tensor(std::string_view name) {
  tensor_ = name;
  return *this;
}

Error& Error::because(std::string_view why) {
  why_ = why;
  return *this;
}

Error& Error::hint(std::string_view hint) {
  hint_ = hint;
  return *this;
}

Error& Error::expected(std::string_view text) {
  expected_ = text;
  return *this;
}

Error& Error::expected(std::int64_t number) { return expected(std::to_string(number)); }

Error& Error::found(std::string_view text) {
  found_ = text;
  return *this;
}

Error& Error::found(std::int64_t number) { return found(std::to_string(number)); }

Error& Error::of_rank(int rank) {
  rank_ = rank;
  return *this;
}

Error& Error::of_kind(std::optional<FindingKind> kind) {
  kind_ = kind;
  return *this;
}

Error& Error::suggest(Remedy remedy, std::string_view argument) {
  suggestions_.push_back({remedy, std::string(argument)});
  return *this;
}

}  // namespace shard
