/// \file
/// Tensors inside torch.save pickles: from rebuild calls to views of storages, and back. Shared by torch and dcp.
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

namespace shard::torch_save {

/// A tensor as a pickle describes it. Views point into the pickle's arena.
struct TensorView {
  DType dtype{};
  Dims shape, strides;
  std::int64_t first = 0;     ///< Elements from the storage's begin.
  std::string_view key;       ///< The storage's: record `data/<key>`.
  std::string_view location;  ///< "cpu", "cuda:0", ...
  std::int64_t storage_bytes = 0;
  DType storage_dtype{};  ///< The elements that the storage counts; `dtype` for an untyped one.
  bool requires_grad = false;
  bool conj = false, neg = false;
  std::optional<std::string_view> inside;  ///< The storage's bytes, where they lie in the pickle; without a key then.
  bool inside_swapped = false;             ///< Those are big-endian.
  bool inside_widened = false;             ///< Those are float32 elements, made of bfloat16 ones.
  std::string_view device;                 ///< Where it was, of a device without storages ("xla:0"), else empty.
  bool has_attributes = false;             ///< The pickle sets attributes of the tensor's Python object.
};

/// A storage as a persistent id describes it: ('storage', class, key, location, count[, view]).
struct StorageId {
  std::string_view key, location;
  DType dtype{};  ///< The class's; uint8 for an untyped storage, which counts bytes.
  bool is_untyped = false;
  std::int64_t count = 0, bytes = 0;
};

/// \throws Error kCorruption  `value` is not a persistent id of a storage.
StorageId as_storage_id(const Value& value);

/// What `value` says if it is a call of _rebuild_tensor, _rebuild_tensor_v2 or _rebuild_tensor_v3, or of a function
/// that wraps such a call and leaves its elements alone (devices without storages, Python attributes); nothing if it is
/// something else.
/// \throws Error kCorruption  a malformed one: wrong arguments, overflow, a view that leaves its storage, a storage
/// class
///   that contradicts.
std::optional<TensorView> as_tensor(Arena& arena, const Value& value);

/// The tensor that `view` says, as the catalog has it: in storage number `storage`, of no rank.
StoredTensor stored_tensor(const TensorView& view, std::uint32_t storage);

/// The name of a tensor kind that shardctl cannot hold (sparse, quantized, nested, meta, subclass, device, legacy;
/// compound: a Parameter whose attributes hold tensors, for readers unwrap all others; a bare persistent id is a
/// "storage without a tensor") if `value` rebuilds one, else empty. ShardedTensor and DTensor are
/// subclasses: whoever reads those asks for them first. Such values are listed and refused by name, never dropped.
std::string_view unsupported_tensor_kind(const Value& value);

/// Pickles `root` as data.pkl (protocol 2): for each kTensor, `view` says the tensor (key, dtype, ...). Emits
/// _rebuild_tensor_v2, or _rebuild_tensor_v3 with an untyped storage for the dtypes that torch writes so.
/// `view.key` must stay valid until the next call.
std::string dump(const Value& root, const std::function<TensorView(std::int64_t tensor)>& view);

/// Pickles an object without kTensor values, with what opaque values in it stand for (LoadOptions::behind_opaque).
/// \throws Error kUnsupported  another opaque value.
std::string dump(const Value& root, const HashMap<const Value*, Value*>& behind_opaque);

/// What is written in the place of a tensor, by `dumper`; nothing, and false, where the tensor itself stands there.
using WriteInstead = std::function<bool(pickle::Dumper& dumper, std::int64_t tensor)>;
/// The same, handed to `sink` piece by piece. What `instead` writes may hold kTensor values of its own.
void dump(const Value& root, const std::function<TensorView(std::int64_t tensor)>& view, const WriteInstead& instead,
          const pickle::Sink& sink);

}  // namespace shard::torch_save
