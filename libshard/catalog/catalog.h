/// \file
/// Catalog: the metadata of a checkpoint. What is stored where, and which logical tensor each stored box belongs to.
///
/// Two levels. A StoredTensor is what a header or a pickle describes: dtype, shape, strides, over a Storage (a run of
/// bytes of one file). A Chunk maps a box of a logical Tensor onto a storage as a strided view. Most formats have one
/// chunk per stored tensor; a fused or strided layout has several. Stored elements that no chunk covers are padding.
///
/// The same type describes a source (made by a reader) and a target (made by `make_target`, its places filled in by a
/// writer). A CatalogBuilder (catalog_builder.h) adds the tensors of both. All entries are flat arrays that refer to
/// each other by index, 192 bytes a tensor, so that a million tensors stay cheap.
///
/// Units: offsets, sizes, strides and `first` count ELEMENTS of the tensor's dtype; names that end in `_bytes`, and
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

#include "libshard/catalog/path.h"
#include "libshard/catalog/placement.h"
#include "libshard/core/arena.h"
#include "libshard/core/dtype.h"
#include "libshard/core/file_identity.h"
#include "libshard/core/findings.h"
#include "libshard/core/value.h"

namespace shard {

inline constexpr std::uint32_t kNoIndex = 0xFFFFFFFF;
/// The key of Catalog::metadata under which formats without shared storages note the aliases that they store in full.
inline constexpr const char* kAliasesNote = "shardctl.aliases";
/// The key under which a repaired checkpoint notes what its source had lost (repair/lost_note.h).
inline constexpr const char* kLostNote = "shardctl.lost";

struct File {
  std::string path;         ///< Relative to the checkpoint's root; for a source of single files its base name.
  std::int64_t bytes = 0;   ///< The whole file.
  int rank = -1;            ///< The rank that wrote it, or -1.
  FileIdentity identity{};  ///< Source only: identifies hard links, whose bytes are counted once.
};

/// A run of bytes of one file that holds elements.
struct Storage {
  std::int64_t offset = -1;  ///< First byte in the file; -1 until located (source) or placed (target).
  std::int64_t bytes = 0;
  std::uint32_t file = 0;
  std::uint16_t location = 0;  ///< Index into Catalog::locations ("cpu", "cuda:0", ...), as torch files have it.
  bool plain : 1 = true;  ///< False: the file's bytes are not plain little-endian elements (compressed, big-endian,
                          ///< conj or neg). Reader::bytes_of decodes them, `offset` counts there.
  bool is_stream : 1 = false;   ///< Compressed: sequential reading is cheapest.
  bool whole_copy : 1 = false;  ///< Target only: filled by Catalog::storage_copies, not through its tensors' chunks.
  std::optional<std::uint32_t> crc32{};  ///< Source only: the CRC-32 of its elements, where the container has one.
};

struct StoredTensor {
  Dims shape;
  Dims strides;            ///< Elements. Always set; row-major where the format has no strides.
  std::int64_t first = 0;  ///< Elements from the storage's begin to this tensor's first element.
  std::uint32_t storage = 0;
  std::int32_t rank = -1;  ///< The rank that wrote it, or -1.
  DType dtype{};
  bool requires_grad = false;
  bool has_attributes = false;  ///< Its Python object has some; they lie in Catalog::root, around the tensor.
};

/// A box of a tensor and where its elements lie: element (i0, i1, ...) of the box is number
/// `first + sum(i[d] * strides[d])` of the storage.
struct Chunk {
  Dims offsets;  ///< The box's first corner in the tensor.
  Dims sizes;
  Dims strides;
  std::int64_t first = 0;
  std::uint32_t stored = 0;  ///< Index into Catalog::stored; that says storage, dtype and rank.
};

struct Tensor {
  std::string_view name;
  Path path;  ///< Empty when it says no more than `name`.
  Dims shape;
  std::uint32_t first_chunk = 0;  ///< Its chunks are chunks[first_chunk, first_chunk + chunk_count), by offsets, rank.
  std::uint32_t chunk_count = 0;
  std::uint32_t alias_of = kNoIndex;  ///< The first tensor by name with the same storage, place, shape, strides, dtype
                                      ///< (a tensor in several chunks: the same in every chunk).
                                      ///< In a target as in its source, with bytes of its own where storages differ.
  std::uint32_t source = kNoIndex;    ///< Target only: the index of the source catalog's tensor that it is made of.
  std::uint32_t sharding =
      kNoIndex;  ///< Index into Catalog::shardings; kNoIndex where the checkpoint does not describe it.
  DType dtype{};
  bool damaged = false;  ///< A finding was reported for it and the sink continued: the tensor is listed but must not be
                         ///< read or planned.
  std::int32_t rank = -1;  ///< The owning rank if the value differs between ranks, else -1.
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
  std::int64_t from_bytes, to_bytes;  ///< Where in each storage.
  std::int64_t bytes;
};

struct Originals;

struct Catalog {
  std::string format;          ///< "safetensors", "torch", "dcp", ...
  std::string format_version;  ///< For people; may be empty.
  std::optional<std::int64_t> world_size;

  std::vector<File> files;
  std::vector<Storage> storages;
  std::vector<StoredTensor> stored;
  std::vector<Chunk> chunks;
  std::vector<Tensor> tensors;  ///< By name, then rank.
  std::vector<Object> objects;  ///< By name, then rank.
  std::vector<StorageCopy> storage_copies;
  std::vector<Sharding> shardings;      ///< Distinct ones.
  std::optional<RankFiles> rank_files;  ///< For per-rank files: how they store sharded tensors.
  std::vector<std::string> locations{"cpu"};

  std::map<std::string, std::string> metadata;  ///< safetensors' __metadata__ and the like.
  Value* root = nullptr;  ///< The container tree with kTensor leaves, where the format has one (torch), else null.
  /// What objects of `root` are in the source's files, for a writer that carries them over; null: it is not known.
  std::shared_ptr<const Originals> originals;
  std::vector<std::string> warnings;  ///< For `warnings` and stderr; facts that a user would want to know.

  std::shared_ptr<Arena> arena = std::make_shared<Arena>();  ///< Holds all views above.
  std::vector<std::shared_ptr<Arena>> borrowed;              ///< Arenas of catalogs that this one's views point into.

  std::span<const Chunk> chunks_of(const Tensor& tensor) const {
    return std::span(chunks).subspan(tensor.first_chunk, tensor.chunk_count);
  }
  /// The stored tensor, storage and file of a chunk, or of a tensor's first chunk. \pre the tensor has a chunk
  const StoredTensor& stored_of(const Chunk& chunk) const { return stored[chunk.stored]; }
  const StoredTensor& stored_of(const Tensor& tensor) const { return stored_of(chunks[tensor.first_chunk]); }
  const Storage& storage_of(const Chunk& chunk) const { return storages[stored_of(chunk).storage]; }
  const Storage& storage_of(const Tensor& tensor) const { return storage_of(chunks[tensor.first_chunk]); }
  Storage& storage_of(const Chunk& chunk) { return storages[stored_of(chunk).storage]; }
  Storage& storage_of(const Tensor& tensor) { return storage_of(chunks[tensor.first_chunk]); }
  const File& file_of(const Chunk& chunk) const { return files[storage_of(chunk).file]; }
  const File& file_of(const Tensor& tensor) const { return files[storage_of(tensor).file]; }
  /// The tensor of that name (of the lowest rank), or null.
  const Tensor* find(std::string_view name) const;
  std::int64_t logical_bytes() const;  ///< Aliases counted once.
  std::int64_t stored_bytes() const;   ///< Elements' bytes of every chunk, aliases once, each replica.
};

/// Returns an empty catalog for a reader to fill. Its arena charges everything that a file causes to a budget.
Catalog source_catalog();

/// Sorts and validates a newly filled catalog: sorts tensors and objects by name, rank and path and chunks by offsets
/// and rank (renumbering kTensor values under `root`), finds aliases, and runs the checks that all readers need: bounds
/// of every chunk in its tensor and storage, overflow, and for tensors of several chunks that they cover the tensor
/// exactly, replicas (equal boxes) aside. Chunks whose storage is not located yet are checked against Storage::bytes.
/// Tensors may not name more than 1 GiB or 1032 times the bytes of the files. \pre files have their sizes
///
/// Reports (kCorruption) of kind gap, overlap, out_of_bounds, shape_mismatch or bad_header, naming the tensor and the
/// place: the first finding of each tensor, which is then `damaged`.
/// \throws Error kUnsupported  coverage that cannot be decided, see check_coverage.
/// Cost: n log n in tensors and chunks.
void validate_catalog(Catalog& catalog, Findings& findings = throwing_findings());

}  // namespace shard
