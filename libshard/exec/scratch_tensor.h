/// \file
/// A tensor in a temporary file. Inside libshard/exec only.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "libshard/exec/execute.h"

namespace shard {

/// A checkpoint with one tensor, in one chunk of plain elements. Elements that the source repeats (stride 0) are stored
/// once. Threads: safe.
class ScratchTensor final : public Reader {
 public:
  enum class Order { kRowMajor, kAsStored };

  /// Copies the tensor as a gather does. Every source byte is read once, and a stream from its begin to its end.
  /// \pre `options` do not request checksums
  /// \throws Error kResource  the file cannot be written, or would be out of proportion. It may have kFreely bytes, and
  ///   kTimes the bytes of its source file.
  ScratchTensor(const Catalog& source, const Reader& reader, std::uint32_t tensor, Order order,
                const ExecuteOptions& options);

  const Catalog& catalog() const override { return catalog_; }
  void locate(std::span<const std::uint32_t> /*tensors*/) override {}
  std::shared_ptr<const RandomReader> file(std::uint32_t /*index*/) const override { return file_; }

  static constexpr std::int64_t kFreely = std::int64_t{1} << 30, kTimes = 16;

 private:
  Catalog catalog_;
  std::shared_ptr<const RandomReader> file_;
};

}  // namespace shard
