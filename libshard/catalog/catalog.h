/// \file Catalog: a checkpoint's metadata, which locates all stored data and maps each stored box to a logical tensor.
///
/// There are two levels. A StoredTensor is the tensor that a header or a pickle describes: dtype, shape and strides,
/// over a Storage (a run of bytes of one file). A Chunk maps a box of a logical Tensor to a storage as a strided view.
/// Most formats have one chunk per stored tensor. A fused or strided layout has several. Stored elements that no chunk
/// covers are padding.
///
/// The same type describes a source (built by a reader) and a target (built by `make_target`, with offsets from a
/// writer). A CatalogBuilder (catalog_builder.h) adds the tensors of both. All entries are flat arrays that refer to
/// each other by index. They need 192 bytes per tensor, so that a million tensors are cheap.
///
/// Units: offsets, sizes, strides and `first` count ELEMENTS of the tensor's dtype. Names that end in `_bytes`, and
/// Storage::offset and Storage::bytes, count bytes.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "libshard/catalog/layouts/placement.h"
#include "libshard/catalog/path.h"
#include "libshard/core/arena.h"
#include "libshard/core/dtype.h"
#include "libshard/core/file_identity.h"
#include "libshard/core/findings.h"
#include "libshard/core/value.h"

namespace shard {

inline constexpr std::uint32_t kNoIndex = 0xFFFFFFFF;
/// The key of Catalog::metadata under which formats without shared storages list the aliases that they store in full.
inline constexpr const char* kAliasesNote = "shardctl.aliases";
/// The key under which a repaired checkpoint lists the losses of its source (repair/lost_note.h).
inline constexpr const char* kLostNote = "shardctl.lost";

struct File {
  std::string path;         ///< Relative to the checkpoint's root. For a source of single files, its base name.
  std::int64_t bytes = 0;   ///< The size of the whole file.
  int rank = -1;            ///< The rank that wrote it, or -1.
  FileIdentity identity{};  ///< Source only: identifies hard links, whose bytes are counted once.
};

/// A run of bytes of one file that contains elements.
struct Storage {
  std::int64_t offset = -1;  ///< The first byte in the file. -1 until located (source) or placed (target).
  std::int64_t bytes = 0;
  std::uint32_t file = 0;
  std::uint16_t location = 0;  ///< Index into Catalog::locations ("cpu", "cuda:0", ...), which torch files record.
  bool plain : 1 = true;  ///< False: the file's bytes are not plain little-endian elements (compressed, big-endian,
                          ///< conj or neg). Reader::bytes_of decodes them, and `offset` counts in its view.
  bool is_stream : 1 = false;   ///< Compressed, so that sequential reading is cheapest.
  bool whole_copy : 1 = false;  ///< Target only: filled by Catalog::storage_copies, not through its tensors' chunks.
  std::optional<std::uint32_t> crc32{};  ///< Source only: the CRC-32 of its elements, if the container has one.
};

struct StoredTensor {
  Dims shape;
  Dims strides;            ///< In elements. Always set; row-major if the format has no strides.
  std::int64_t first = 0;  ///< The number of elements from the storage's begin to this tensor's first element.
  std::uint32_t storage = 0;
  std::int32_t rank = -1;  ///< The rank that wrote it, or -1.
  DType dtype{};
  bool requires_grad = false;
  bool has_attributes = false;  ///< Its Python object has attributes: in Catalog::root, around the tensor.
};

/// A box of a tensor and the position of its elements: element (i0, i1, ...) of the box is number `first + sum(i[d] *
/// strides[d])` of the storage.
struct Chunk {
  Dims offsets;  ///< The box's first corner in the tensor.
  Dims sizes;
  Dims strides;
  std::int64_t first = 0;
  std::uint32_t stored = 0;  ///< Index into Catalog::stored, whose entry has the storage, dtype and rank.
};

struct Tensor {
  std::string_view name;
  Path path;  ///< Empty if it is equivalent to `name`.
  Dims shape;
  std::uint32_t first_chunk = 0;  ///< Its chunks: [first_chunk, first_chunk + chunk_count), by offsets and rank.
  std::uint32_t chunk_count = 0;
  std::uint32_t alias_of = kNoIndex;  ///< The first tensor by name with the same storage, position, shape, strides and
                                      ///< dtype (for a tensor in several chunks: in every chunk). In a target, as in
                                      ///< its source, but with separate bytes if storages differ.
  std::uint32_t source = kNoIndex;    ///< Target only: the index of the source catalog's tensor that provides its data.
  /// Index into Catalog::shardings; kNoIndex if the checkpoint does not describe it.
  std::uint32_t sharding = kNoIndex;
  DType dtype{};
  bool damaged = false;    ///< Has a finding; listed, but must not be read or planned.
  std::int32_t rank = -1;  ///< The owning rank if the value differs between ranks, otherwise -1.
};

/// A leaf that is not a tensor, or an empty container.
struct Object {
  std::string_view name;
  Path path;
  Value* value = nullptr;
  std::int32_t rank = -1;
};

/// Target only: bytes copied unchanged because several tensors share them (torch to torch).
struct StorageCopy {
  std::uint32_t from_storage, to_storage;
  std::int64_t from_bytes, to_bytes;  ///< The position in each storage.
  std::int64_t bytes;
};

struct Originals;

struct Catalog {
  std::string format;          ///< For example "safetensors", "torch", "dcp".
  std::string format_version;  ///< For display; may be empty.
  std::optional<std::int64_t> world_size;

  std::vector<File> files;
  std::vector<Storage> storages;
  std::vector<StoredTensor> stored;
  std::vector<Chunk> chunks;
  std::vector<Tensor> tensors;  ///< Sorted by name, then rank.
  std::vector<Object> objects;  ///< Sorted by name, then rank.
  std::vector<StorageCopy> storage_copies;
  std::vector<Sharding> shardings;      ///< Without duplicates.
  std::optional<RankFiles> rank_files;  ///< How per-rank files store sharded tensors.
  std::vector<std::string> locations{"cpu"};

  std::map<std::string, std::string> metadata;  ///< For example safetensors' __metadata__.
  Value* root = nullptr;  ///< The container tree with kTensor leaves if the format has one (torch), otherwise null.
  /// The stored form of objects in `root`, for a writer that copies them. Null: unknown.
  std::shared_ptr<const Originals> originals;
  std::vector<std::string> warnings;  ///< Facts that a user should know. They are shown in `warnings` and on stderr.

  std::shared_ptr<Arena> arena = std::make_shared<Arena>();  ///< Owns the data of all views above.
  std::vector<std::shared_ptr<Arena>> borrowed;              ///< Arenas of catalogs that this one's views refer to.

  std::span<const Chunk> chunks_of(const Tensor& tensor) const {
    return std::span(chunks).subspan(tensor.first_chunk, tensor.chunk_count);
  }
  /// Sorts chunks in the order of a catalog: by offsets, and those at the same offsets by rank. Stable.
  void sort_chunks(std::span<Chunk> of_one_tensor) const;
  /// The stored tensor, storage and file of a chunk, or of a tensor's first chunk. \pre the tensor has a chunk
  const StoredTensor& stored_of(const Chunk& chunk) const { return stored[chunk.stored]; }
  const StoredTensor& stored_of(const Tensor& tensor) const { return stored_of(chunks[tensor.first_chunk]); }
  const Storage& storage_of(const Chunk& chunk) const { return storages[stored_of(chunk).storage]; }
  const Storage& storage_of(const Tensor& tensor) const { return storage_of(chunks[tensor.first_chunk]); }
  Storage& storage_of(const Chunk& chunk) { return storages[stored_of(chunk).storage]; }
  Storage& storage_of(const Tensor& tensor) { return storage_of(chunks[tensor.first_chunk]); }
  const File& file_of(const Chunk& chunk) const { return files[storage_of(chunk).file]; }
  const File& file_of(const Tensor& tensor) const { return files[storage_of(tensor).file]; }
  /// The tensor with that name (of the lowest rank), or null.
  const Tensor* find(std::string_view name) const;
  std::uint32_t index_of(const Tensor& own) const { return static_cast<std::uint32_t>(&own - tensors.data()); }
  /// The index of the tensor that owns a tensor's bytes: the one of which it is an alias, or the tensor itself.
  std::uint32_t original_of(std::uint32_t tensor) const {
    return tensors[tensor].alias_of == kNoIndex ? tensor : tensors[tensor].alias_of;
  }
  std::int64_t logical_bytes() const;  ///< The size of all tensors, with aliases counted once.
  std::int64_t stored_bytes() const;   ///< All chunks' elements, with aliases once and all replicas.
};

/// Returns an empty catalog for a reader to fill. Its arena charges all memory and work that a file causes to a budget.
Catalog source_catalog();

/// Sorts and validates a newly filled catalog. It sorts tensors and objects by name, rank and path, and chunks by
/// offsets and rank (renumbering kTensor values under `root`), and finds aliases. Then it runs the checks that all
/// readers need: bounds of every chunk in its tensor and storage, overflow, and for tensors of several chunks that they
/// cover the tensor exactly, apart from replicas (equal boxes). Chunks whose storage is not located yet are checked
/// against Storage::bytes. Tensors may not claim more than 1 GiB or 1032 times the bytes of the files. \pre files have
/// their sizes
///
/// Reports the first finding of each tensor, which is then `damaged`: kCorruption of kind gap, overlap, out_of_bounds,
/// shape_mismatch or bad_header, naming the tensor and the position.
/// \throws Error kUnsupported  coverage that cannot be decided, see check_coverage. Cost: n log n in tensors and
///   chunks. Threads: `threads` for many names.
void validate_catalog(Catalog& catalog, Findings& findings = throwing_findings(), int threads = 1);

}  // namespace shard
