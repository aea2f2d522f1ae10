#include "formats/hdf5/master.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>

#include "formats/hdf5/root_notes.h"
#include "libshard/core/box.h"
#include "libshard/core/checked.h"
#include "libshard/core/error.h"
#include "libshard/core/hash_table.h"

namespace shard::hdf5 {

namespace {

Outline::Keys keys_of(const Tensor& tensor) { return {tensor.name, tensor.path}; }

std::uint32_t storage_of(const Catalog& target, const Chunk& chunk) { return target.stored[chunk.stored].storage; }

void move_to_master(Catalog& target, std::uint32_t master) {
  for (const Tensor& tensor : target.tensors) {
    if (!tensor.shape.empty() && !is_empty(tensor.shape)) continue;
    for (const Chunk& chunk : target.chunks_of(tensor)) target.storages[storage_of(target, chunk)].file = master;
  }
}

/// All but the last file, the master, may go.
void drop_empty_files(Catalog& target) {
  std::vector<bool> holds(target.files.size());
  for (const Storage& storage : target.storages) holds[storage.file] = true;
  holds.back() = true;
  std::vector<std::uint32_t> numbers(target.files.size());
  std::vector<File> files;
  for (std::size_t i = 0; i < holds.size(); ++i) {
    numbers[i] = static_cast<std::uint32_t>(files.size());
    if (holds[i]) files.push_back(target.files[i]);
  }
  for (Storage& storage : target.storages) storage.file = numbers[storage.file];
  target.files = std::move(files);
}

/// The world size of files of ranks, the last before the master the highest.
std::int64_t world_size_of(const Catalog& target) {
  std::int64_t size = target.world_size.value_or(0);
  for (const File& file : target.files) size = std::max<std::int64_t>(size, file.rank + std::int64_t{1});
  return size;
}

void name_files(Catalog& target, const Parts& parts) {
  for (std::uint32_t i = 0; i < parts.master; ++i) {
    File& file = target.files[i];
    file.path = parts.world_size > 0 ? rank_file_name(file.rank, parts.world_size)
                                     : fmt::format("model-{:05}-of-{:05}.h5", i + 1, parts.master);
  }
  target.files[parts.master].path = kMasterName;
}

/// "%[4:8,0:16]". Names of keys hold no '%' before a bracket.
std::string suffix_of(const Chunk& chunk) {
  std::string suffix = "%[";
  for (int d = 0; d < chunk.sizes.size(); ++d) {
    suffix += fmt::format("{}{}:{}", d > 0 ? "," : "", chunk.offsets[d], chunk.offsets[d] + chunk.sizes[d]);
  }
  return suffix + ']';
}

/// Whether the elements of the box follow each other in the whole tensor.
bool is_run(Dims shape, const Chunk& chunk) {
  int d = 0;
  while (d < shape.size() && chunk.sizes[d] == 1) ++d;
  for (++d; d < shape.size(); ++d) {
    if (chunk.sizes[d] != shape[d]) return false;
  }
  return true;
}

/// Packed elements are a dataset of bytes.
OutgoingBox packed_box(const Tensor& tensor, const Chunk& chunk) {
  if (!is_run(tensor.shape, chunk)) {
    throw Error(ErrorCode::kUnsupported, fmt::format("cannot write pieces of tensor '{}' to HDF5", tensor.name))
        .of_tensor(tensor.name)
        .because(fmt::format("its elements of dtype {} are a row of bytes, of which a piece is not one run",
                             dtype_name(tensor.dtype)))
        .suggest(Remedy::kWriteAs, "dcp");
  }
  const DTypeBlock block = dtype_block(tensor.dtype);
  std::int64_t first = 0, count = 1;
  for (int d = 0; d < tensor.shape.size(); ++d) {
    first = first * tensor.shape[d] + chunk.offsets[d];
    count *= chunk.sizes[d];
  }
  return {{first / block.elements * block.bytes}, {count / block.elements * block.bytes}, {}, {}};
}

OutgoingBox box_of(const Tensor& tensor, const Chunk& chunk) {
  if (dtype_block(tensor.dtype).elements > 1) return packed_box(tensor, chunk);
  return {{chunk.offsets.begin(), chunk.offsets.end()}, {chunk.sizes.begin(), chunk.sizes.end()}, {}, {}};
}

std::int64_t bytes_of(const Tensor& tensor) { return checked_bytes(checked_numel(tensor.shape), tensor.dtype); }

}  // namespace

Parts arrange_parts(Catalog& target) {
  target.files.push_back({"", 0, -1});
  move_to_master(target, static_cast<std::uint32_t>(target.files.size() - 1));
  const bool by_rank = target.files[0].rank >= 0;
  const std::int64_t world_size = by_rank ? world_size_of(target) : 0;
  drop_empty_files(target);
  Parts parts;
  parts.master = static_cast<std::uint32_t>(target.files.size() - 1);
  parts.world_size = world_size;
  name_files(target, parts);
  parts.chunks.resize(parts.master);
  parts.tensor_of_chunk.resize(target.chunks.size());
  for (std::uint32_t i = 0; i < target.tensors.size(); ++i) {
    const Tensor& tensor = target.tensors[i];
    for (std::uint32_t chunk = tensor.first_chunk; chunk < tensor.first_chunk + tensor.chunk_count; ++chunk) {
      const std::uint32_t file = target.storages[storage_of(target, target.chunks[chunk])].file;
      if (file < parts.master) parts.chunks[file].push_back(chunk);
      parts.tensor_of_chunk[chunk] = i;
    }
  }
  return parts;
}

Outline part_outline(const Catalog& target, const Parts& parts, std::uint32_t file, std::vector<std::string>& paths) {
  Outline outline;
  HashMap<std::uint64_t, std::uint32_t> datasets;  // By storage: aliases share theirs.
  std::uint32_t last = kNoIndex;
  for (const std::uint32_t number : parts.chunks[file]) {
    const Chunk& chunk = target.chunks[number];
    const Tensor& tensor = target.tensors[parts.tensor_of_chunk[number]];
    const Storage& storage = target.storages[storage_of(target, chunk)];
    const auto [dataset, is_new] = datasets.try_emplace(std::uint64_t{storage_of(target, chunk)}, 0U);
    if (is_new) dataset = outline.add_dataset(tensor.dtype, chunk.sizes, storage.offset, storage.bytes);
    const bool is_first = std::exchange(last, parts.tensor_of_chunk[number]) != parts.tensor_of_chunk[number];
    paths[number] = outline.link(keys_of(tensor), dataset, is_first ? "" : suffix_of(chunk));
  }
  if (parts.world_size > 0) {
    outline.add_root_attribute(kRankAttribute, integer_content(target.files[file].rank));
    outline.add_root_attribute(kWorldSizeAttribute, integer_content(parts.world_size));
  }
  return outline;
}

Outline master_outline(const Catalog& target, const Parts& parts, const std::vector<std::string>& paths) {
  Outline outline;
  std::vector<std::uint32_t> datasets(target.storages.size(), kNoIndex);  // By the storage of the first chunk.
  for (const Tensor& tensor : target.tensors) {
    const Storage& storage = target.storages[storage_of(target, target.chunks[tensor.first_chunk])];
    std::uint32_t& dataset = datasets[storage_of(target, target.chunks[tensor.first_chunk])];
    if (dataset == kNoIndex && storage.file == parts.master) {
      dataset = outline.add_dataset(tensor.dtype, tensor.shape, storage.offset, storage.bytes);
    } else if (dataset == kNoIndex) {
      std::vector<OutgoingBox> boxes;
      for (std::uint32_t i = tensor.first_chunk; i < tensor.first_chunk + tensor.chunk_count; ++i) {
        boxes.push_back(box_of(tensor, target.chunks[i]));
        boxes.back().file = target.files[target.storages[storage_of(target, target.chunks[i])].file].path;
        boxes.back().dataset = paths[i];
      }
      dataset = outline.add_virtual(tensor.dtype, tensor.shape, bytes_of(tensor), std::move(boxes));
    }
    outline.link(keys_of(tensor), dataset);
  }
  if (parts.world_size > 0) outline.add_root_attribute(kWorldSizeAttribute, integer_content(parts.world_size));
  return outline;
}

}  // namespace shard::hdf5
