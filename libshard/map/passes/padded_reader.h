/// \file PaddedReader: a source to which tensors of zeros are appended, for the padding of the output.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "libshard/checkpoint/reader.h"
#include "libshard/map/passes/apply.h"

namespace shard {

/// Appends tensors of zeros, in one more file that no store contains. Tensors keep their indices.
class PaddedReader final : public Reader {
 public:
  PaddedReader(std::unique_ptr<Reader> inner, std::span<const PaddingTensor> paddings);

  /// The index of the first tensor of zeros.
  std::uint32_t first_padding() const { return first_padding_; }
  const Catalog& catalog() const override { return catalog_; }
  void locate(std::span<const std::uint32_t> tensors) override;
  void load_objects() override;
  std::int64_t unread_object_bytes() const override { return inner_->unread_object_bytes(); }
  std::shared_ptr<const RandomReader> file(std::uint32_t index) const override;
  std::shared_ptr<const RandomReader> bytes_of(std::uint32_t storage) const override;

 private:
  void add_zeros();

  std::unique_ptr<Reader> inner_;
  std::vector<PaddingTensor> paddings_;
  Catalog catalog_;
  std::uint32_t first_padding_ = 0;
  std::shared_ptr<const RandomReader> zeros_;
};

}  // namespace shard
