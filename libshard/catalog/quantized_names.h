/// \file
/// The names that tools give the tensors of quantized modules. Inside libshard/catalog only.
#pragma once

#include <cstdint>
#include <string_view>

#include "libshard/catalog/quantized.h"

namespace shard {

/// Evidence in a name. Bits of KnownName::marks.
enum NameMark : std::uint8_t {
  kIsWeight = 1,        ///< It is the weight itself, if its dtype packs numbers.
  kNeedsPair = 2,       ///< With kIsWeight: only beside one that `kPairs`, or if kAloneOfWeight holds.
  kPairs = 4,           ///< With a weight that packs numbers it makes a module.
  kProves = 8,          ///< With a weight of any dtype it makes a module.
  kAlone = 16,          ///< Without any weight it makes a module.
  kAloneOfWeight = 32,  ///< Like kAlone if the parameter is called `weight`; with kIsWeight it needs no pair then.
  kJoins = 64,          ///< In a checkpoint that is quantized otherwise, it is quantized too.
};

struct KnownName {
  std::string_view end;
  QuantizedRole role;
  std::uint8_t marks;
};

/// A name, taken apart.
struct QuantizedName {
  std::string_view module;           ///< See QuantizedModule::name.
  const KnownName* known = nullptr;  ///< Null: `weight`, or a parameter with a name of its own.
  bool is_weight = false;            ///< The last part is `weight`.
  bool is_of_weight = false;         ///< With `known`: it belongs to a parameter that is called `weight`.
};

QuantizedName take_apart(std::string_view name);

}  // namespace shard
