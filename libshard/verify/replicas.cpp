#include "libshard/verify/replicas.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "libshard/catalog/catalog_builder.h"
#include "libshard/core/box.h"
#include "libshard/core/checked.h"
#include "libshard/core/error.h"
#include "libshard/exec/tensor_reader.h"

namespace shard {

namespace {

constexpr std::int64_t kBlockBytes = 1 << 20;

bool is_located(const Catalog& catalog, const Chunk& chunk) { return catalog.storage_of(chunk).offset >= 0; }

bool is_same_place(const Catalog& catalog, const Chunk& a, const Chunk& b) {
  return catalog.stored[a.stored].storage == catalog.stored[b.stored].storage && a.first == b.first &&
         a.strides == b.strides;
}

void add_pairs(const Catalog& catalog, std::uint32_t index, std::vector<ReplicaPair>& pairs) {
  const Tensor& tensor = catalog.tensors[index];
  std::uint32_t first = tensor.first_chunk;
  for (std::uint32_t i = first + 1; i < tensor.first_chunk + tensor.chunk_count; ++i) {
    const Chunk &a = catalog.chunks[first], &b = catalog.chunks[i];
    if (a.offsets != b.offsets || a.sizes != b.sizes) {
      first = i;
      continue;
    }
    const std::int64_t bytes = checked_bytes(checked_numel(b.sizes.span()), tensor.dtype);
    const bool can_differ = bytes > 0 && !is_same_place(catalog, a, b);
    if (can_differ && is_located(catalog, a) && is_located(catalog, b)) pairs.push_back({index, first, i, bytes});
  }
}

/// The tensor that is one chunk of another.
void add_chunk(const Catalog& from, const ReplicaPair& pair, std::uint32_t chunk, Catalog& to) {
  const Tensor& tensor = from.tensors[pair.tensor];
  Chunk whole = from.chunks[chunk];
  whole.offsets = to.arena->zeros(whole.sizes.size());
  CatalogBuilder builder(to);
  builder.begin(tensor.name, {}, tensor.dtype, whole.sizes);
  builder.add_chunk(whole);
}

}  // namespace

std::vector<ReplicaPair> replica_pairs(const Catalog& catalog) {
  std::vector<ReplicaPair> pairs;
  for (std::uint32_t i = 0; i < catalog.tensors.size(); ++i) {
    const Tensor& tensor = catalog.tensors[i];
    if (!tensor.damaged && tensor.alias_of == kNoIndex && tensor.chunk_count > 1) add_pairs(catalog, i, pairs);
  }
  return pairs;
}

ReplicaCompare::ReplicaCompare(const Reader& reader, std::span<const ReplicaPair> pairs, std::int64_t max_memory_bytes,
                               Progress& progress, Findings& findings, bool may_differ)
    : reader_(reader),
      pairs_(pairs),
      first_pool_(max_memory_bytes / 4),
      other_pool_(max_memory_bytes / 4),
      progress_(progress),
      findings_(findings),
      may_differ_(may_differ) {
  if (pairs.empty()) return;
  const Catalog& source = reader.catalog();
  catalog_.files = source.files;
  catalog_.storages = source.storages;
  for (Storage& storage : catalog_.storages) storage.crc32.reset();  // Checked with the files.
  catalog_.stored = source.stored;
  for (const ReplicaPair& pair : pairs) {
    add_chunk(source, pair, pair.first, catalog_);
    add_chunk(source, pair, pair.other, catalog_);
  }
}

void ReplicaCompare::compare(std::size_t index, const std::stop_token& stop) {
  const auto tensor = static_cast<std::uint32_t>(2 * index);
  TensorReader first(catalog_, reader_, tensor, progress_, throwing_findings(), &first_pool_);
  TensorReader other(catalog_, reader_, tensor + 1, progress_, throwing_findings(), &other_pool_);
  const std::int64_t elements = checked_numel(catalog_.tensors[tensor].shape.span());
  const DType dtype = catalog_.tensors[tensor].dtype;
  const std::int64_t step = std::max<std::int64_t>(8, first.block_elements(kBlockBytes));
  std::vector<std::byte> a, b;
  for (std::int64_t begin = 0; begin < elements; begin += step) {
    check_stop(stop);
    const std::int64_t end = std::min(elements, begin + step);
    a.resize(static_cast<std::size_t>(checked_bytes(end - begin, dtype)));
    b.resize(a.size());
    first.read(begin, end, a);
    other.read(begin, end, b);
    if (a == b) continue;
    const auto at = std::ranges::mismatch(a, b).in1 - a.begin();
    return report(pairs_[index], begin + at * (end - begin) / static_cast<std::int64_t>(a.size()));
  }
}

void ReplicaCompare::report(const ReplicaPair& pair, std::int64_t element) const {
  const Catalog& source = reader_.catalog();
  const auto stored = [&](std::uint32_t chunk) -> const StoredTensor& {
    return source.stored[source.chunks[chunk].stored];
  };
  const auto file = [&](std::uint32_t chunk) -> const std::string& {
    return source.files[source.storages[stored(chunk).storage].file].path;
  };
  Error error(ErrorCode::kCorruption,
              fmt::format("the replica of its box at {} differs from that in {}, first at element {} of the box",
                          to_string(source.chunks[pair.other].offsets.span()), file(pair.first), element));
  error.in_file(file(pair.other)).of_tensor(source.tensors[pair.tensor].name).of_kind(FindingKind::kReplicaMismatch);
  if (stored(pair.other).rank >= 0) error.of_rank(stored(pair.other).rank);
  if (may_differ_) {
    return findings_.warn(error.because("ranks keep their own copy of it, such as a batch's statistics"));
  }
  findings_.report(error.because("one of them is damaged, or the ranks were out of step when they saved"));
}

}  // namespace shard
