/// \file
/// Sorts the tensors of an adapter by module. Inside libshard/compute only.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "libshard/catalog/catalog.h"
#include "libshard/compute/merge_adapters.h"
#include "libshard/core/error.h"

namespace shard {

/// The tensors of one module of an adapter; kNoIndex: it has none.
struct AdapterPair {
  std::string module;  ///< Its name in the base model, as the adapter knows it.
  int depth = 0;       ///< How many adapters are around it: see ExpertPairs.
  std::uint32_t a = kNoIndex, b = kNoIndex, magnitude = kNoIndex;
  bool is_embedding = false;
};

/// A tensor that replaces the base model's.
struct SavedTensor {
  std::string name;
  std::uint32_t tensor;
  bool is_base = false;  ///< The adapter's pairs change this one. PEFT saves embeddings so if an adapter changes them.
};

/// The tensors of an adapter, by module.
struct AdapterParts {
  std::vector<AdapterPair> pairs;
  std::vector<SavedTensor> saved;
};

/// \throws Error kCorruption  half a pair, an empty or disproportionate factor; kUnsupported  an unknown form.
AdapterParts find_parts(const Adapter& adapter);

/// An error about a tensor of an adapter.
Error of_adapter(ErrorCode code, const Adapter& adapter, std::string_view tensor, std::string_view what);

}  // namespace shard
