/// \file
/// `.metadata` of a dcp checkpoint as plain data, read from its pickle and written as one.
///
/// It lists the tensors with dtypes and sizes, the boxes (chunks) into which they are divided, and for each box and
/// object the file and the bytes of its item. An item is a torch.save zip; item.h describes its content.
///
/// Source: torch/distributed/checkpoint/metadata.py and filesystem.py of torch 2.11. All spellings from torch 1.13 to
/// 2.15 are read (README.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/parts/pickle/pickle.h"
#include "libshard/catalog/catalog.h"
#include "libshard/core/error.h"

namespace shard::dcp {

/// The attribute of Metadata in which a repair records its losses.
inline constexpr const char* kLostAttribute = "shardctl_lost";

/// The location of one item.
struct Item {
  std::int64_t offset = 0;   ///< Bytes from the file's start.
  std::int64_t length = -1;  ///< Bytes; -1 if the metadata does not record it.
  std::uint32_t file = 0;    ///< Index into Metadata::files.
  bool zstd = false;         ///< The bytes are a zstd stream of the item (torch's transform stream.zstd/1).
  /// For repair: the item extends past the end of its file, and `length` is the part that exists.
  bool is_cut = false;
};

struct ChunkEntry {
  Dims offsets, sizes;
  std::uint32_t item = kNoIndex;
};

struct TensorEntry {
  std::string_view name;  ///< The flat key.
  Path path;              ///< Empty if the path is `name` as a single key.
  Dims size;
  DType dtype{};
  bool requires_grad = false;
  std::uint32_t first_chunk = 0, chunk_count = 0;  ///< Into Metadata::chunks.
  /// Not empty if Megatron-Core stored the tensor reshaped: the number of blocks in each dimension, then the number of
  /// elements in a block. A chunk is a run of a block's elements in row-major order. Its offsets are the block's
  /// indices and the start of the run; its sizes are ones and the length of the run.
  Dims stored_size{};
};

/// A value that is not a tensor; its item is a bytes item.
struct ObjectEntry {
  std::string_view name;
  Path path;
  std::uint32_t item = kNoIndex;
  int rank = -1;             ///< The rank whose own metadata names it (use_collectives=False), otherwise -1.
  bool is_reshaped = false;  ///< A tensor that cannot be read as a tensor, see set_apart.
};

struct Metadata {
  std::vector<std::string> files;  ///< Names of `.distcp` files, in order of first use.
  std::vector<Item> items;
  std::vector<TensorEntry> tensors;
  std::vector<ChunkEntry> chunks;
  std::vector<ObjectEntry> objects;
  /// False for torch 1.13 and Megatron-Core, whose names do not nest. Objects then contain everything below the top
  /// level.
  bool has_paths = false;
  std::string lost_note;  ///< The record of a repair, see kLostNote. It is an attribute of Metadata that torch ignores.
  /// The writer's version, derived from the modules of the classes: "torch<=1.13", "torch>=2.3", ...
  std::string maker;
  std::vector<std::string> warnings;
  /// A problem that does not affect the other values; it concerns tensors that are set apart.
  std::optional<Error> defect;
};

struct MetadataOptions {
  bool opaque_globals = false;    ///< Classes outside the list are accepted in values that are not read (storage_meta).
  bool sets_short_apart = false;  ///< A tensor is set apart if the sizes of one of its chunks lack leading dimensions.
  bool names_megatron = false;    ///< Optimizer states are recognised by their names, see restore_block_runs.
};

/// Reads the pickle. Afterwards every chunk and every object has its item, and every item belongs to one. Bounds and
/// coverage of chunks are not checked yet (validate_catalog does). Names, paths and sizes are copied into `arena`.
///
/// Optimizer tensors that Megatron-Core up to 0.15 stored reshaped have their original shapes, see restore_block_runs.
///
/// \throws Error kCorruption   the pickle is not dcp metadata; a field has the wrong type; a chunk or object has no
///   location; a location has no chunk; a chunk has two locations; a file name is not a single plain name.
/// \throws Error kUnsupported  items were transformed by anything but zstd; tensor layouts other than strided;
///   ByteCheckpoint; classes of Megatron-Core other than its Metadata.
/// Cost: linear; one hash look-up per item.
Metadata parse_metadata(Arena& arena, std::span<const std::byte> pickle, const std::string& file,
                        const MetadataOptions& options = {});

/// Restores the original shapes of such tensors (block_runs.cpp), see TensorEntry::stored_size. A tensor whose stored
/// shape or chunks contradict its original shape is set apart, with a warning. All other tensors stay unchanged.
///
/// \param mcore_data      name -> {} or {"nd_reformulated_orig_global_shape": shape}; null if the attribute is missing.
/// \param names_megatron  A state named `optimizer.state.STATE.KEY`, with or without `chained_K.` before it, that
///   `mcore_data` does not name gets the shape of the tensor KEY if both have the same number of elements.
/// \throws Error kCorruption  `mcore_data` has a different type.
/// Cost: linear.
void restore_block_runs(Arena& arena, const Value* mcore_data, bool names_megatron, Metadata& metadata);

/// Turns unreadable tensors into opaque objects, which no writer accepts. Adds the warning "<count> tensors <why>,
/// '<name>' first".
void set_apart(Metadata& metadata, const std::function<bool(std::string_view name)>& is_unreadable,
               std::string_view why);

/// Writes the pickle with protocol 4, as torch 2.11 does (version 1.0.0). \pre every chunk and object has an item; all
/// lengths are set.
void dump_metadata(const Metadata& metadata, const pickle::Sink& sink);

}  // namespace shard::dcp
