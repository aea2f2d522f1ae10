/// \file
/// UnroundedReader: the values of computed tensors before they are rounded, for further arithmetic. Inside
/// libshard/compute only.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "libshard/checkpoint/reader.h"
#include "libshard/compute/computed_reader.h"

namespace shard {

/// A view of a reader in which tensors of computed storages are float32. Its catalog lists no files. Their numbers are
/// those of `base`. Ownership: refers to all readers. Threads: as `base`.
class UnroundedReader final : public Reader {
 public:
  /// \param computed  the readers that compute storages of `base`, such as `base` itself, or the reader under a map
  UnroundedReader(Reader& base, ComputedReaders computed);

  /// Whether all elements of a tensor are computed, so that this reader's values differ from those of `base`.
  bool has(std::uint32_t tensor) const { return is_computed_[tensor]; }
  const Catalog& catalog() const override { return catalog_; }
  void locate(std::span<const std::uint32_t> tensors) override;
  std::shared_ptr<const RandomReader> file(std::uint32_t index) const override { return base_.file(index); }
  std::shared_ptr<const RandomReader> bytes_of(std::uint32_t storage) const override;

 private:
  void take_stored();
  const ComputedReader* reader_of(std::uint32_t storage) const;

  Reader& base_;
  ComputedReaders computed_;
  Catalog catalog_;
  std::vector<bool> is_computed_;  ///< By tensor.
};

}  // namespace shard
