/// \file Digests of tensors' elements. They do not depend on the checkpoint's format or layout.
#pragma once

#include <span>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "libshard/catalog/selection/selection.h"
#include "libshard/checkpoint/reader.h"
#include "libshard/compare/pass.h"
#include "libshard/core/digest.h"
#include "libshard/exec/buffer_pool.h"
#include "libshard/exec/execute.h"
#include "libshard/ranks/group.h"

namespace shard {

/// Hashes the elements of each selected tensor: row-major, packed, little-endian, in the dtype that the selection
/// converts them to. Each rank of a group has one over the same source, which does this rank's part of the work.
class DigestPass {
 public:
  /// Collective.
  /// \throws Error kInvalidArgument  the ranks see different tensors
  /// Ownership: all arguments must outlive this object.
  DigestPass(Reader& reader, const Selection& selection, HashAlgorithm algorithm, const PassOptions& options,
             Group& group, Progress& progress);
  /// Reads and hashes this rank's share. Runs as the work of a collective step.
  /// \throws Error  a file cannot be read or is damaged
  void read(const std::stop_token& stop);
  /// The digests in the order of the selection. Collective: rank 0 receives the digests of all tensors. Other ranks
  /// keep those of their own share. \pre read() has finished
  std::vector<std::string> finish();

 private:
  std::string digest_of(const SelectedTensor& tensor);
  void collect();

  Reader& reader_;
  const Selection& selection_;
  const HashAlgorithm algorithm_;
  const int threads_;
  Group& group_;
  Progress& progress_;
  BufferPool pool_;
  std::pair<std::size_t, std::size_t> share_{};
  std::vector<std::string> digests_{};
};

/// Runs all three steps in one process. \returns hexadecimal digests in the order of the selection.
std::vector<std::string> tensor_digests(Reader& reader, const Selection& selection, HashAlgorithm algorithm,
                                        const PassOptions& options = {});

/// A digest of all selected tensors: the hash of lines `name TAB dtype TAB d0,d1,... TAB digest LF`, sorted by name.
std::string checkpoint_digest(const Catalog& catalog, const Selection& selection, std::span<const std::string> digests,
                              HashAlgorithm algorithm);

}  // namespace shard
