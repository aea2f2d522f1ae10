/// \file
/// The exception that ends the parsing of a file. Inside formats/hdf5/parser only.
#pragma once

#include <stdexcept>
#include <string>

namespace shard::hdf5 {

/// The file is malformed, or valid but not supported.
class Refusal : public std::runtime_error {
 public:
  Refusal(const std::string& text, bool is_unsupported) : std::runtime_error(text), unsupported_(is_unsupported) {}
  bool is_unsupported() const { return unsupported_; }

 private:
  bool unsupported_;
};

[[noreturn]] inline void throw_malformed(const std::string& text) { throw Refusal(text, false); }
[[noreturn]] inline void throw_unsupported(const std::string& text) { throw Refusal(text, true); }

}  // namespace shard::hdf5
