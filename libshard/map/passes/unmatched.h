/// \file
/// Collects the tensors that no rule of a map matches. Inside libshard/map only.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "libshard/catalog/catalog.h"
#include "libshard/core/short_text.h"

namespace shard {

class UnmatchedTensors {
 public:
  /// \param tensor  its index in the catalog of `check`. \param name  its name for messages
  void add(std::uint32_t tensor, std::string_view name);
  /// \throws Error kInvalidArgument  there are any. If some belong to quantized weights, it suggests to dequantize, or
  ///   else to exclude them.
  void check(const Catalog& catalog) const;

 private:
  FirstNames names_;
  std::vector<std::uint32_t> tensors_;
};

}  // namespace shard
