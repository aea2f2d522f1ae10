/// \file
/// MappedReader: a source whose map is undone, as a Reader of logical tensors.
#pragma once

#include <functional>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "libshard/checkpoint/reader.h"
#include "libshard/map/documents/model_map.h"
#include "libshard/map/passes/undo.h"

namespace shard {

class MappedReader final : public Reader {
 public:
  /// See UndoneMap for `leaves_out` and for what is refused.
  MappedReader(std::unique_ptr<Reader> inner, const ModelMap& map,
               const std::function<bool(std::string_view)>& leaves_out = {});

  const UndoneMap& undone() const { return undone_; }
  const Catalog& catalog() const override { return catalog_; }
  /// Compares replicas too, unless the document says that the first counts, and padding with zeros.
  /// \throws Error kCorruption  as the inner reader; of kind replica_mismatch, or padding that is not zero.
  void locate(std::span<const std::uint32_t> tensors) override;
  void load_objects() override;
  std::int64_t unread_object_bytes() const override { return inner_->unread_object_bytes(); }
  std::shared_ptr<const RandomReader> file(std::uint32_t index) const override { return inner_->file(index); }
  std::shared_ptr<const RandomReader> bytes_of(std::uint32_t storage) const override {
    return inner_->bytes_of(storage);
  }

 private:
  void check_paddings(std::uint32_t stored);

  std::unique_ptr<Reader> inner_;
  UndoneMap undone_;
  Catalog catalog_;
  std::vector<bool> is_checked_;  ///< By tensor: it was located, and what can be compared was.
  std::vector<bool> is_located_;  ///< By stored tensor.
  std::vector<std::pair<std::uint32_t, std::uint32_t>> paddings_of_;  ///< Stored tensors, and paddings in them; sorted.
  std::vector<std::uint32_t> unread_;  ///< By padding: stored tensors that are not located yet.
};

}  // namespace shard
