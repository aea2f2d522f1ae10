/// \file The names of tensors in quantized modules, by tool. Inside libshard/catalog only.
#pragma once

#include <cstdint>
#include <string_view>

#include "libshard/catalog/quantized.h"

namespace shard {

/// Evidence in a name. Bits of KnownName::marks.
enum NameMark : std::uint8_t {
  kIsWeight = 1,        ///< It is the weight itself, if its dtype packs numbers.
  kNeedsPair = 2,       ///< With kIsWeight: only beside one that `kPairs`, or if kAloneOfWeight holds.
  kPairs = 4,           ///< It forms a module with a weight that packs numbers.
  kProves = 8,          ///< It forms a module with a weight of any dtype.
  kAlone = 16,          ///< It forms a module without any weight.
  kAloneOfWeight = 32,  ///< Like kAlone if the parameter's name is `weight`; with kIsWeight, it then needs no pair.
  kJoins = 64,          ///< In a checkpoint with other quantized tensors, it is quantized too.
};

struct KnownName {
  std::string_view end;
  QuantizedRole role;
  std::uint8_t marks;
};

/// A name, split into its parts.
struct QuantizedName {
  std::string_view module;           ///< See QuantizedModule::name.
  const KnownName* known = nullptr;  ///< Null: `weight`, or a parameter with an unknown name.
  bool is_weight = false;            ///< The last part is `weight`.
  bool is_of_weight = false;         ///< With `known`: it belongs to a parameter with the name `weight`.
};

QuantizedName take_apart(std::string_view name);

}  // namespace shard
