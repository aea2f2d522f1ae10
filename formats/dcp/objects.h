/// \file
/// Bytes items: Python objects, and the tensors inside them.
///
/// torch stores a tensor in a bytes item if it does not look for one there: inside a tuple or a class, and in torch
/// 1.13 inside any dict below the top level. Each such tensor has its storage beside the pickle, so it can be read like
/// any other.
#pragma once

#include <optional>
#include <span>
#include <string>
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
  std::string_view name;  ///< The object's name and the keys inside it, joined by dots.
  Path path;              ///< The whole path from the root.
  Value* node = nullptr;  ///< Its kTensor value in the object, not numbered yet. One node may have several names.
  torch_save::TensorView view;
  std::uint32_t location = 0;  ///< Index into LoadedObject::locations.
};

struct LoadedObject {
  Value* root = nullptr;
  std::string_view pickle;  ///< The pickle from which it was loaded.
  std::vector<InnerTensor> tensors;
  std::vector<Location> locations;
  bool hides_tensors = false;    ///< `root` contains opaque values in place of tensors.
  bool is_mended = false;        ///< Recovered from a damaged item, whose bytes must not be copied.
  std::optional<Error> foreign;  ///< The error for a class outside the list, unless such classes are opaque.
};

struct ObjectOptions {
  std::string file;             ///< For messages.
  bool opaque_globals = false;  ///< See OpenOptions.
  /// Plain tensors that have a path become kTensor values. If false, all tensors become opaque.
  bool with_tensors = false;
  /// The class name of opaque values that replace tensors, see kInnerTensor.
  std::string_view hidden_as = "torch.Tensor";
  Originals* originals = nullptr;  ///< Receives the original of each opaque value.
};

/// The class name of opaque values for tensors that belong to their object, such as the states of generators. They are
/// dropped together with it.
inline constexpr std::string_view kInnerTensor = "torch.Tensor.inside";

/// The smallest bytes item that can contain a tensor; the zip around a tensor is already larger.
inline constexpr std::int64_t kLeastWithTensor = 512;
/// The largest decoded size of a bytes item compressed with zstd.
inline constexpr std::int64_t kMaxDecodedObject = std::int64_t{1} << 32;

/// Loads the object. Tensors without a path (attributes of a class) and tensors of unsupported kinds become opaque
/// values, so that no writer takes the object for complete.
/// Ownership: stored in `arena`, which takes over the pickle's bytes.
/// \throws Error kCorruption  its pickle is damaged.
LoadedObject load_object(Arena& arena, const OpenItem& item, const ObjectEntry& entry, const ObjectOptions& options);

/// The opaque value that replaces a tensor that cannot be written.
Value* hidden_tensor(Arena& arena, std::string_view called = "torch.Tensor");

/// Replaces every tensor that is still a call by such a value. The call is recorded in `originals`; if that is null, it
/// is lost. \returns whether there was any.
bool hide_tensors(Arena& arena, Value& value, std::string_view called, Originals* originals = nullptr);

/// The value of an object on one rank; the rank is -1 if the checkpoint has one value for all ranks.
struct RankObject {
  const ObjectEntry* entry = nullptr;
  const LoadedObject* object = nullptr;
};

/// Appends the leaves of an object, without its tensors, to `objects`. A leaf with equal values on all ranks that have
/// it is one entry, otherwise it is one entry per rank. \pre `ranks` is sorted by rank and not empty. Cost: linear in
/// all leaves.
void list_object(Arena& arena, std::span<const RankObject> ranks, std::vector<Object>& objects);

// Common data of a folder, preserved exactly as its file stores them, with tensors and classes outside the list.

/// The largest total size of the tensors in common data that are kept in memory.
inline constexpr std::int64_t kMaxKeptStorages = std::int64_t{64} << 20;

/// Reads the storages of the tensors that are hidden in `common`, and renumbers them. If they are larger than
/// kMaxKeptStorages, damaged, or not little-endian, the entries of `originals` are dropped instead. Cost: linear.
/// \pre the values were loaded and hidden with `originals`
void keep_storages(Arena& arena, const Value& common, const OpenItem& item, Originals& originals);

/// A complete torch.save zip of an object. Opaque values are replaced by their originals (null: there are none), and
/// the zip has only their storages. \throws Error kUnsupported  the object contains other opaque values.
std::string saved_object(const std::string& folder, const Value& value, const Originals* originals);

}  // namespace shard::dcp
