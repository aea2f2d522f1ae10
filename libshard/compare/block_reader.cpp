#include "libshard/compare/block_reader.h"

#include <algorithm>

#include "libshard/catalog/element_counts.h"
#include "libshard/exec/cast.h"

namespace shard {

BlockReader::BlockReader(const Catalog& catalog, const Reader& reader, const SelectedTensor& tensor, Progress& progress,
                         BufferPool& pool, int threads)
    : reader_(catalog, reader, tensor.source, progress, throwing_findings(), &pool, threads),
      from_(catalog.tensors[tensor.source].dtype),
      to_(tensor.dtype),
      elements_(element_count(catalog.tensors[tensor.source].shape)) {}

std::int64_t BlockReader::block_elements(std::int64_t bytes) const {
  return std::max<std::int64_t>(8, reader_.block_elements(bytes));
}

std::span<const std::byte> BlockReader::read(std::int64_t begin, std::int64_t end) {
  raw_.resize(static_cast<std::size_t>(packed_bytes(end - begin, from_)));
  if (begin < end) reader_.read(begin, end, raw_);
  if (from_ == to_) return raw_;
  converted_.resize(static_cast<std::size_t>(packed_bytes(end - begin, to_)));
  cast(from_, raw_, to_, converted_);
  return converted_;
}

}  // namespace shard
