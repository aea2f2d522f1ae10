#include "libshard/compare/pass.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "libshard/catalog/element_counts.h"
#include "libshard/core/checked.h"
#include "libshard/core/digest.h"
#include "libshard/core/error.h"
#include "libshard/exec/cast.h"
#include "libshard/ranks/collective_step.h"

namespace shard {

namespace {

void check_same_tensors(Group& group, std::span<const std::int64_t> bytes) {
  Hasher hasher(HashAlgorithm::kXxh3_128);
  hasher.update(std::as_bytes(bytes));
  const std::int64_t total = std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0});
  expect_same(group, fmt::format("{} tensors of {} bytes ({})", bytes.size(), total, hasher.finish_hex()),
              ErrorCode::kInvalidArgument, "they see different tensors");
}

}  // namespace

std::pair<std::size_t, std::size_t> own_share(Group& group, std::span<const std::int64_t> bytes) {
  const std::int64_t rank = group.rank(), ranks = group.size();
  std::int64_t total = 0;
  // Each tensor counts one byte more, so that empty tensors are divided as well.
  for (const std::int64_t each : bytes) total += each + 1;
  if (ranks > 1) check_same_tensors(group, bytes);
  const auto begin_of = [&](std::int64_t part) {
    const std::int64_t wanted = begin_of_share(total, part, ranks);
    std::int64_t before = 0;
    std::size_t i = 0;
    while (i < bytes.size() && before < wanted) before += bytes[i++] + 1;
    return i;
  };
  return {begin_of(rank), rank + 1 == ranks ? bytes.size() : begin_of(rank + 1)};
}

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
