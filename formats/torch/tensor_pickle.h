/// \file
/// Tensors inside torch.save pickles: converts rebuild calls to views of storages, and back. Shared by torch and dcp.
///
/// Source: torch/_utils.py, torch/_tensor.py, torch/serialization.py of torch 2.11.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/parts/pickle/pickle.h"
#include "libshard/catalog/catalog.h"
#include "libshard/core/value.h"

namespace shard::torch_save {

/// A tensor as a pickle describes it. Views point into the pickle's arena.
struct TensorView {
  DType dtype{};
  Dims shape, strides;
  std::int64_t first = 0;     ///< The first element, counted from the storage's start.
  std::string_view key;       ///< The storage's key: the record is `data/<key>`.
  std::string_view location;  ///< "cpu", "cuda:0", ...
  std::int64_t storage_bytes = 0;
  DType storage_dtype{};  ///< The dtype in which the storage counts its elements; `dtype` for an untyped one.
  bool requires_grad = false;
  bool conj = false, neg = false;
  std::optional<std::string_view> inside;  ///< The storage's bytes if they are inside the pickle; `key` is empty then.
  bool inside_swapped = false;             ///< The bytes in `inside` are big-endian.
  /// The bytes in `inside` are float32 elements that were widened from bfloat16.
  bool inside_widened = false;
  /// The tensor's original device, if it is one without storages ("xla:0"); otherwise empty.
  std::string_view device;
  bool has_attributes = false;  ///< The pickle sets attributes of the tensor's Python object.
};

/// A storage in the form of a persistent id: ('storage', class, key, location, count[, view]).
struct StorageId {
  std::string_view key, location;
  DType dtype{};  ///< The class's dtype; uint8 for an untyped storage, which counts bytes.
  bool is_untyped = false;
  std::int64_t count = 0, bytes = 0;
};

/// \throws Error kCorruption  `value` is not a persistent id of a storage.
StorageId as_storage_id(const Value& value);

/// The tensor of a call of _rebuild_tensor, _rebuild_tensor_v2 or _rebuild_tensor_v3, or of a function that wraps such
/// a call without changing its elements (devices without storages, Python attributes). Nothing for any other value.
/// \throws Error kCorruption  a malformed call: wrong arguments, overflow, a view that extends past its storage, a
///   contradictory storage class.
std::optional<TensorView> as_tensor(Arena& arena, const Value& value);

/// The catalog's form of `view`: in storage number `storage`, without a rank.
StoredTensor stored_tensor(const TensorView& view, std::uint32_t storage);

/// The kind of a tensor that shardctl cannot store, if `value` rebuilds one; otherwise empty. Kinds: sparse, quantized,
/// nested, meta, subclass, device, legacy; compound, a Parameter whose attributes contain tensors, because readers
/// unwrap all other Parameters. A bare persistent id is a "storage without a tensor". ShardedTensor and DTensor count
/// as subclasses, so readers of these must check for them first. Such values are listed and refused by name, never
/// dropped.
std::string_view unsupported_tensor_kind(const Value& value);

/// Pickles `root` as data.pkl (protocol 2). `view` returns the tensor (key, dtype, ...) for each kTensor. Writes calls
/// of _rebuild_tensor_v2, or of _rebuild_tensor_v3 with an untyped storage for the dtypes for which torch does so.
/// `view.key` must stay valid until the next call.
std::string dump(const Value& root, const std::function<TensorView(std::int64_t tensor)>& view);

/// Pickles an object without kTensor values. Its opaque values are replaced by their originals
/// (LoadOptions::behind_opaque).
/// \throws Error kUnsupported  an opaque value has no original.
std::string dump(const Value& root, const HashMap<const Value*, Value*>& behind_opaque);

/// Writes a replacement for a tensor with `dumper`. False: it wrote nothing, and the tensor itself is needed.
using WriteInstead = std::function<bool(pickle::Dumper& dumper, std::int64_t tensor)>;
/// Pickles `root` in the same way and passes it to `sink` piece by piece. The values that `instead` writes may contain
/// kTensor values.
void dump(const Value& root, const std::function<TensorView(std::int64_t tensor)>& view, const WriteInstead& instead,
          const pickle::Sink& sink);

/// The class ("module.Name") of a tensor subclass that `value`, or a Parameter around it, rebuilds; otherwise empty.
std::string_view tensor_subclass(const Value& value);

}  // namespace shard::torch_save
