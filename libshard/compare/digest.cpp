#include "libshard/compare/digest.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "libshard/catalog/element_counts.h"
#include "libshard/core/parallel.h"
#include "libshard/exec/reading_groups.h"
#include "libshard/ranks/wire.h"

namespace shard {

/// Elements are hashed in row-major order, so the digest does not depend on layout or format.
std::string DigestPass::digest_of(const SelectedTensor& tensor) {
  BlockReader blocks(reader_.catalog(), reader_, tensor, progress_, pool_, threads_);
  Hasher hasher(algorithm_);
  const std::int64_t step = blocks.block_elements(kBlockBytes);
  for (std::int64_t begin = 0; begin < blocks.elements(); begin += step) {
    hasher.update(blocks.read(begin, std::min(begin + step, blocks.elements())));
  }
  return hasher.finish_hex();
}

/// Gathers the digests of all ranks' shares on rank 0.
void DigestPass::collect() {
  WireWriter own;
  own.number(static_cast<std::int64_t>(share_.first));
  for (std::size_t i = share_.first; i < share_.second; ++i) own.text(digests_[i]);
  for (const Bytes& piece : gather(group_, own.take(), 0)) {
    WireReader from(piece);
    for (auto i = static_cast<std::size_t>(from.number()); !from.at_end(); ++i) digests_.at(i) = from.text();
  }
}

DigestPass::DigestPass(Reader& reader, const Selection& selection, HashAlgorithm algorithm, const PassOptions& options,
                       Group& group, Progress& progress)
    : reader_(reader),
      selection_(selection),
      algorithm_(algorithm),
      threads_(options.threads),
      group_(group),
      progress_(progress),
      pool_(options.max_memory_bytes) {
  std::vector<std::int64_t> bytes;
  for (const SelectedTensor& tensor : selection.tensors) {
    bytes.push_back(packed_bytes(element_count(reader.catalog().tensors[tensor.source].shape), tensor.dtype));
  }
  share_ = own_share(group, bytes);
  digests_.resize(selection.tensors.size());
}

void DigestPass::read(const std::stop_token& stop) {
  const auto [first, last] = share_;
  const std::span chosen = std::span(selection_.tensors).subspan(first, last - first);
  std::vector<std::uint32_t> tensors;
  for (const SelectedTensor& tensor : chosen) tensors.push_back(tensor.source);
  reader_.locate(tensors);
  const std::vector<std::vector<std::size_t>> groups = reading_groups(reader_.catalog(), tensors);
  for_each_index(groups.size(), threads_, stop, [&, begin = first]() -> IndexWorker {
    return [&, begin](std::size_t group) {
      for (const std::size_t i : groups[group]) digests_[begin + i] = digest_of(chosen[i]);
    };
  });
}

std::vector<std::string> DigestPass::finish() {
  if (group_.size() > 1) collect();
  return std::move(digests_);
}

std::vector<std::string> tensor_digests(Reader& reader, const Selection& selection, HashAlgorithm algorithm,
                                        const PassOptions& options) {
  Progress progress;
  DigestPass pass(reader, selection, algorithm, options, solo_group(), progress);
  pass.read({});
  return pass.finish();
}

/// Hashes one line per tensor, which a user can repeat from the output of `shardctl digest --json`.
std::string checkpoint_digest(const Catalog& catalog, const Selection& selection, std::span<const std::string> digests,
                              HashAlgorithm algorithm) {
  Hasher hasher(algorithm);
  std::string line;
  for (std::size_t i = 0; i < digests.size(); ++i) {
    const SelectedTensor& tensor = selection.tensors[i];
    line.assign(tensor.name).append("\t").append(dtype_name(tensor.dtype)).append("\t");
    const Dims shape = catalog.tensors[tensor.source].shape;
    for (int d = 0; d < shape.size(); ++d) line.append(d == 0 ? "" : ",").append(std::to_string(shape[d]));
    line.append("\t").append(digests[i]).append("\n");
    hasher.update(line);
  }
  return hasher.finish_hex();
}

}  // namespace shard
