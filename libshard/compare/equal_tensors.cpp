#include "libshard/compare/equal_tensors.h"

#include <algorithm>
#include <array>

#include "libshard/core/digest.h"

namespace shard {

namespace {

/// The result of comparing two catalog entries without reading their elements.
enum class Known : std::uint8_t { kEqual, kDifferent, kOpen };

Known compare_entries(const Catalog& catalog, const SelectedTensor& a, const SelectedTensor& b) {
  const Tensor &first = catalog.tensors[a.source], &second = catalog.tensors[b.source];
  if (first.dtype != second.dtype || first.shape != second.shape) return Known::kDifferent;
  return catalog.original_of(a.source) == catalog.original_of(b.source) ? Known::kEqual : Known::kOpen;
}

}  // namespace

bool EqualTensors::are_equal(const SelectedTensor& a, const SelectedTensor& b) {
  const Known known = compare_entries(reader_.catalog(), a, b);
  if (known != Known::kOpen) return known == Known::kEqual;
  reader_.locate(std::array{a.source, b.source});
  BlockReader read_a = open(a, pool_a_), read_b = open(b, pool_b_);
  const std::int64_t step = std::max(read_a.block_elements(kBlockBytes), read_b.block_elements(kBlockBytes));
  for (std::int64_t begin = 0; begin < read_a.elements(); begin += step) {
    const std::int64_t end = std::min(begin + step, read_a.elements());
    if (!std::ranges::equal(read_a.read(begin, end), read_b.read(begin, end))) return false;
  }
  return true;
}

bool EqualTensors::may_be_equal(const SelectedTensor& a, const SelectedTensor& b) {
  const Known known = compare_entries(reader_.catalog(), a, b);
  if (known != Known::kOpen) return known == Known::kEqual;
  const std::string first = first_block(a);  // A copy, because the next call may move the string.
  if (first != first_block(b)) return false;
  const std::string all = whole(a);
  return all == whole(b);
}

BlockReader EqualTensors::open(const SelectedTensor& tensor, BufferPool& pool) {
  return {reader_.catalog(), reader_, tensor, progress_, pool, 1};
}

const std::string& EqualTensors::first_block(const SelectedTensor& tensor) {
  std::string& print = prints_[tensor.source].first_block;
  if (print.empty()) print = hash_of(tensor, true);
  return print;
}

const std::string& EqualTensors::whole(const SelectedTensor& tensor) {
  std::string& print = prints_[tensor.source].whole;
  if (print.empty()) print = hash_of(tensor, false);
  return print;
}

std::string EqualTensors::hash_of(const SelectedTensor& tensor, bool first_block) {
  reader_.locate(std::array{tensor.source});
  BlockReader reader = open(tensor, pool_a_);
  Hasher hasher(HashAlgorithm::kXxh3_128);
  const std::int64_t step = reader.block_elements(kBlockBytes);
  const std::int64_t count = first_block ? std::min(step, reader.elements()) : reader.elements();
  for (std::int64_t begin = 0; begin < count; begin += step) {
    hasher.update(reader.read(begin, std::min(begin + step, count)));
  }
  return hasher.finish_hex();
}

}  // namespace shard
