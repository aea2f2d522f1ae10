// Pickles in tests are written byte by byte, as string literals ("..."_s keeps zeros).
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "formats/parts/pickle/pickle.h"
#include "libshard/core/error.h"

namespace shard::testing {

using namespace std::string_literals;

inline std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

inline pickle::LoadOptions known_only() {
  pickle::LoadOptions options;
  options.file = "data.pkl";
  options.allow = pickle::is_known_global;
  return options;
}

/// Loads; `text` must outlive the result.
inline Value* load_text(Arena& arena, std::string_view text, const pickle::LoadOptions& options = known_only()) {
  return pickle::load(arena, bytes_of(text), options);
}

inline std::string dump_text(const Value& value, int protocol) {
  pickle::DumpOptions options;
  options.protocol = protocol;
  pickle::Dumper dumper(std::move(options));
  dumper.value(value);
  return dumper.finish();
}

/// The Error of loading `text`. Without one, an Error of kInterrupted, which no load throws.
inline Error error_of(std::string_view text, const pickle::LoadOptions& options = known_only()) {
  Arena arena;
  try {
    load_text(arena, text, options);
  } catch (const Error& error) {
    return error;
  }
  return Error(ErrorCode::kInterrupted, "it loaded");
}

}  // namespace shard::testing
