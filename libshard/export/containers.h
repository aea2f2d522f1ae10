/// \file
/// The containers of a training checkpoint: which one holds the model, and which hold other states. Pure. Inside
/// libshard/export only.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "libshard/catalog/catalog.h"
#include "libshard/export/model_part.h"

namespace shard::exporting {

struct Containers {
  std::vector<std::string> model{};    ///< Keys from the root to the model's tensors; empty: they are in no container.
  std::vector<BesideModel> beside{};   ///< Other containers that may hold a model.
  std::vector<std::string> choices{};  ///< Not empty: several containers have a model, and no key identifies the right
                                       ///< one.
};

/// Examines the tensors with these indices. `takes_several`: several models count as one, under their keys. Cost:
/// linear in their names and paths.
Containers find_containers(const Catalog& source, std::span<const std::uint32_t> tensors, bool takes_several);

/// True if `path` leads through `container` and continues below it.
bool is_inside(const Path& path, std::span<const std::string> container);

/// True for an entry that belongs to an optimizer, a scheduler or another state of the trainer, by the key of its
/// container or by its name.
bool is_other_state(std::string_view name, const Path& path);

/// Keys joined by '.', as names of tensors begin.
std::string joined(std::span<const std::string> keys);

}  // namespace shard::exporting
