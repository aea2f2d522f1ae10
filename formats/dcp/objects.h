/// \file
/// Bytes items: Python objects, and the tensors inside them.
///
/// torch puts a tensor into a bytes item where it does not look for one: in a tuple or a class, and in torch 1.13 in
/// any dict below the top. Each has its storage beside the pickle, so it can be read like any other.
#pragma once

#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "formats/dcp/item.h"
#include "formats/dcp/metadata.h"
#include "libshard/catalog/catalog.h"
#include "libshard/catalog/originals.h"
#include "libshard/core/error.h"

namespace shard::dcp {

/// A tensor inside a bytes item.
struct InnerTensor {
  std::string_view name;  ///< The object's name and the way inside it, joined by dots.
  Path path;              ///< Full.
  Value* node = nullptr;  ///< Its kTensor value in the object, without a number yet; one node may have several names.
  torch_save::TensorView view;
  std::uint32_t location = 0;  ///< Index into LoadedObject::locations.
};

struct LoadedObject {
  Value* root = nullptr;
  std::string_view pickle;  ///< What it was made of.
  std::vector<InnerTensor> tensors;
  std::vector<Location> locations;
  bool hides_tensors = false;    ///< Opaque values stand for tensors in `root`.
  std::optional<Error> foreign;  ///< The refusal of a class outside the list, unless those are opaque.
};

struct ObjectOptions {
  std::string file;             ///< For messages.
  bool opaque_globals = false;  ///< See OpenOptions.
  bool with_tensors = false;    ///< Plain tensors that a path leads to become kTensor values; else all are opaque.
  std::string_view hidden_as = "torch.Tensor";  ///< What opaque values of tensors are called, see kInnerTensor.
  Originals* originals = nullptr;               ///< Receives what opaque values stand for.
};

/// Stands in the place of tensors that belong to their object, as generators' states do: they are left out with it.
inline constexpr std::string_view kInnerTensor = "torch.Tensor.inside";

/// No item of fewer bytes holds a tensor: the zip around one alone has more.
inline constexpr std::int64_t kLeastWithTensor = 512;
/// What a bytes item of zstd may decode to.
inline constexpr std::int64_t kMaxDecodedObject = std::int64_t{1} << 32;

/// Tensors that no path leads to (attributes of a class), and those of other kinds, become opaque values, so that no
/// writer takes the object for complete.
/// Ownership: lives in `arena`, which takes over the pickle's bytes.
/// \throws Error kCorruption  its pickle is damaged.
LoadedObject load_object(Arena& arena, const OpenItem& item, const ObjectEntry& entry, const ObjectOptions& options);

/// The opaque value that stands in the place of a tensor that cannot be written.
Value* hidden_tensor(Arena& arena, std::string_view called = "torch.Tensor");

/// Puts one in the place of every tensor that is still a call, which goes to `originals` (null: is lost). \returns
/// whether there was any.
bool hide_tensors(Arena& arena, Value& value, std::string_view called, Originals* originals = nullptr);

/// One rank's value of an object; rank -1 where the checkpoint has one for all.
struct RankObject {
  const ObjectEntry* entry = nullptr;
  const LoadedObject* object = nullptr;
};

/// Appends the leaves of an object, tensors aside, to `objects`: one entry where all ranks that have a leaf agree on
/// its value, else one per rank. \pre by rank; not empty. Cost: linear in all leaves.
void list_object(Arena& arena, std::span<const RankObject> ranks, std::vector<Object>& objects);

}  // namespace shard::dcp
