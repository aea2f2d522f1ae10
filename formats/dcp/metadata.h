/// \file
/// `.metadata` of a dcp checkpoint as plain data, read from its pickle and written as one.
///
/// It says which tensors there are, their dtypes and sizes, the boxes (chunks) they were cut into, and in which bytes
/// of which file the item of each box and of each object lies. An item is a torch.save zip; what is in it, item.h says.
///
/// Source: torch/distributed/checkpoint/metadata.py and filesystem.py of torch 2.11; the spellings of torch 1.13 to
/// 2.15 are read alike (README.md).
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

/// The attribute of Metadata that holds the note of what a repair could not save.
inline constexpr const char* kLostAttribute = "shardctl_lost";

/// Where one item lies.
struct Item {
  std::int64_t offset = 0;   ///< Bytes, in its file.
  std::int64_t length = -1;  ///< Bytes; -1 where the metadata does not say.
  std::uint32_t file = 0;    ///< Index into Metadata::files.
  bool zstd = false;         ///< The bytes are a zstd stream of the item (torch's transform stream.zstd/1).
  bool is_cut = false;       ///< For repair: it is longer than its file, and `length` is what is there.
};

struct ChunkEntry {
  Dims offsets, sizes;
  std::uint32_t item = kNoIndex;
};

struct TensorEntry {
  std::string_view name;  ///< The flat key.
  Path path;              ///< Empty when it says no more than `name`.
  Dims size;
  DType dtype{};
  bool requires_grad = false;
  std::uint32_t first_chunk = 0, chunk_count = 0;  ///< Into Metadata::chunks.
  /// Not empty where Megatron-core stored the tensor reshaped: into how many blocks each dimension is cut, and how many
  /// elements a block has. A chunk is a run of a block's elements in row-major order: its offsets are the block's
  /// indices and where in it the run begins, its sizes ones and the run's length.
  Dims stored_size{};
};

/// A value that is not a tensor, a bytes item.
struct ObjectEntry {
  std::string_view name;
  Path path;
  std::uint32_t item = kNoIndex;
  int rank = -1;             ///< The rank whose own metadata names it (use_collectives=False), else -1.
  bool is_reshaped = false;  ///< A tensor that cannot be read for what it is: see set_apart.
};

struct Metadata {
  std::vector<std::string> files;  ///< Names of `.distcp` files, in the order in which they are first named.
  std::vector<Item> items;
  std::vector<TensorEntry> tensors;
  std::vector<ChunkEntry> chunks;
  std::vector<ObjectEntry> objects;
  /// Without them (torch 1.13, Megatron-core) names do not nest, and objects hold whatever lies below the top.
  bool has_paths = false;
  std::string lost_note;  ///< What a repair noted, see kLostNote; an attribute of Metadata that torch does not look at.
  std::string maker;      ///< What the classes' modules say about who wrote it: "torch<=1.13", "torch>=2.3", ...
  std::vector<std::string> warnings;
  std::optional<Error>
      defect;  ///< What is wrong, and leaves the rest as it is meant; of some tensors that are set apart.
};

struct MetadataOptions {
  bool opaque_globals = false;    ///< Classes outside the list may stand where nothing is read (storage_meta).
  bool sets_short_apart = false;  ///< Tensors of which a chunk's sizes lack leading dimensions are set apart.
  bool names_megatron = false;    ///< States are known by their names, see restore_block_runs.
};

/// Reads the pickle. Every chunk and every object has its item afterwards, and every item belongs to one; chunks lie
/// nowhere in particular yet (validate_catalog checks bounds and coverage). Names, paths and sizes are copied into
/// `arena`.
///
/// Tensors of the optimizer that Megatron-core up to 0.15 stored reshaped have their own shapes (block_runs.h).
///
/// \throws Error kCorruption   not such a pickle; a field of the wrong type; a chunk or object without a place; a place
///   without a chunk; two places for one chunk; a file name that is not one plain name.
/// \throws Error kUnsupported  items that were transformed by other than zstd, other tensor layouts than strided,
///   ByteCheckpoint, classes of Megatron-core other than its Metadata.
/// Cost: linear; one hash look-up per item.
Metadata parse_metadata(Arena& arena, std::span<const std::byte> pickle, const std::string& file,
                        const MetadataOptions& options = {});

/// Turns unreadable tensors into opaque objects, which no writer accepts. Warns with
/// their number: "<count> tensors <why>, '<name>' first".
void set_apart(Metadata& metadata, const std::function<bool(std::string_view name)>& is_unreadable,
               std::string_view why);

/// Writes the pickle, protocol 4, as torch 2.11 writes it (version 1.0.0). \pre every chunk and object has an item; all
/// lengths are set.
void dump_metadata(const Metadata& metadata, const pickle::Sink& sink);

}  // namespace shard::dcp
