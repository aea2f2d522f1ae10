#include "libshard/core/error.h"

#include <array>
#include <new>
#include <system_error>

#include "libshard/core/short_text.h"

namespace shard {

namespace {

constexpr std::size_t kLongest = 2 * kMaxMessageBytes;  ///< The limit on paths, and on lines that repeat the command.

/// what() ends at a NUL, which names of tensors may contain.
std::string without_nul(std::string text) {
  for (std::size_t at = text.find('\0'); at != std::string::npos; at = text.find('\0', at))
    text.replace(at, 1, "\\x00");
  return text;
}

}  // namespace

std::string_view code_name(ErrorCode code) {
  constexpr std::array<std::string_view, 9> kNames{"invalid_argument", "not_found",   "corruption",
                                                   "exists",           "resource",    "peer",
                                                   "unsupported",      "interrupted", "internal"};
  static_assert(kNames.size() == static_cast<std::size_t>(ErrorCode::kInternal) + 1);
  return kNames[static_cast<std::size_t>(code)];
}

Error::Error(ErrorCode code, const std::string& message)
    : std::runtime_error(without_nul(clipped(message))), code_(code) {}

Error& Error::in_file(std::string_view path) {
  if (file_.empty()) file_ = clipped(path, kLongest);
  return *this;
}

Error& Error::replace_file(std::string_view path) {
  file_ = clipped(path, kLongest);
  return *this;
}

Error& Error::of_tensor(std::string_view name) {
  tensor_ = clipped(name);
  return *this;
}

Error& Error::because(std::string_view why) {
  why_ = clipped(why);
  return *this;
}

Error& Error::hint(std::string_view hint) {
  hint_ = clipped(hint, kLongest);
  return *this;
}

Error& Error::expected(std::string_view text) {
  expected_ = clipped(text);
  return *this;
}

Error& Error::expected(std::int64_t number) { return expected(std::to_string(number)); }

Error& Error::found(std::string_view text) {
  found_ = clipped(text);
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
  suggestions_.push_back({remedy, clipped(argument, kLongest)});
  return *this;
}

Error Error::with_message(const std::string& message) const {
  Error changed = *this;
  static_cast<std::runtime_error&>(changed) = std::runtime_error(without_nul(clipped(message)));
  return changed;
}

Error as_error(const std::exception_ptr& failure) {
  const auto out_of_memory = [] {
    return Error(ErrorCode::kResource, "out of memory").hint("give this process more memory");
  };
  try {
    std::rethrow_exception(failure);
  } catch (const Error& error) {
    return error;
  } catch (const std::bad_alloc&) {
    return out_of_memory();
  } catch (const std::length_error&) {  // A container would be larger than all memory.
    return out_of_memory();
  } catch (const std::system_error& error) {  // There is no memory for a thread, or there are too many threads.
    const bool is_thread = error.code() == std::errc::resource_unavailable_try_again;
    return Error(ErrorCode::kResource, (is_thread ? "cannot start a thread: " : "") + std::string(error.what()))
        .hint("give this process more memory and threads");
  } catch (const std::exception& error) {
    return Error(ErrorCode::kInternal, error.what());
  } catch (...) {
    return Error(ErrorCode::kInternal, "an unknown exception");
  }
}

}  // namespace shard
