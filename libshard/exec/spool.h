/// \file
/// A tensor's compressed storages, decoded once. Inside libshard/exec only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "libshard/checkpoint/reader.h"
#include "libshard/plan/plan.h"

namespace shard {

/// A reader in which what pieces span of compressed storages lies in a temporary file, so that it may be read in any
/// order. Threads and ownership: as the reader, which must outlive this, as must the catalog.
class Spool final : public Reader {
 public:
  /// Decodes front to back, a storage at a time, through `memory`. `pieces` are in units of `unit_bytes`.
  /// \throws Error kResource  the file cannot be written, or would be out of proportion: it may have kFreely, and
  /// kTimes the bytes of the files that the storages lie in.
  Spool(const Catalog& catalog, const Reader& reader, std::span<const Piece> pieces, std::int64_t unit_bytes,
        std::span<std::byte> memory);

  const Catalog& catalog() const override { return catalog_; }
  void locate(std::span<const std::uint32_t> /*tensors*/) override {}
  std::shared_ptr<const RandomReader> file(std::uint32_t index) const override { return reader_.file(index); }
  std::shared_ptr<const RandomReader> bytes_of(std::uint32_t storage) const override;

  static constexpr std::int64_t kFreely = std::int64_t{1} << 30, kTimes = 16;

 private:
  /// The span of a storage: bytes [begin, end) of its view.
  struct Span {
    std::uint32_t storage;
    std::int64_t begin, end;
    std::shared_ptr<const RandomReader> spooled = nullptr;  ///< The same bytes, at the same offsets.
  };
  void find_spans(std::span<const Piece> pieces, std::int64_t unit_bytes);

  const Catalog& catalog_;
  const Reader& reader_;
  std::vector<Span> spans_;  ///< By storage.
};

}  // namespace shard
