/// \file
/// Readers between a source and the copy job: MappedReader undoes a map on a stored source, PaddedReader appends the
/// output's padding.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "libshard/checkpoint/reader.h"
#include "libshard/map/documents/model_map.h"
#include "libshard/map/passes/apply.h"
#include "libshard/map/passes/undo.h"

namespace shard {

class ChunkChecks;

/// Refuses a map that moves or turns a quantized weight and leaves its scales as they are. `before` and `after` are the
/// tensors on both sides of the map. \param skips  returns whether a tensor of `before` is not mapped. Empty: none
/// \throws Error kUnsupported  by the name of the weight
void check_scales_follow(const Catalog& before, const Catalog& after,
                         const std::function<bool(std::uint32_t)>& skips = {});

/// A Reader of logical tensors.
class MappedReader final : public Reader {
 public:
  /// See UndoneMap for `leaves_out` and for errors.
  MappedReader(std::unique_ptr<Reader> inner, const ModelMap& map,
               const std::function<bool(std::string_view)>& leaves_out = {});

  const UndoneMap& undone() const { return undone_; }
  const Catalog& catalog() const override { return catalog_; }
  /// Also compares replicas, unless the document selects the first one, and compares padding with zeros. If this
  /// throws, all `tensors` are compared again by the next call.
  /// \throws Error kCorruption  as the inner reader; kind replica_mismatch; padding that is not zero.
  void locate(std::span<const std::uint32_t> tensors) override;
  void load_objects() override;
  std::int64_t unread_object_bytes() const override { return inner_->unread_object_bytes(); }
  std::shared_ptr<const RandomReader> file(std::uint32_t index) const override { return inner_->file(index); }
  std::shared_ptr<const RandomReader> bytes_of(std::uint32_t storage) const override {
    return inner_->bytes_of(storage);
  }
  bool check_container(std::uint32_t file, ContainerReport& report) const override {
    return inner_->check_container(file, report);
  }

 private:
  void check_replicas(std::uint32_t index, ChunkChecks& checks) const;
  void check_padding(std::uint32_t number, ChunkChecks& checks);
  std::string place_of(std::uint32_t index, const Chunk& chunk) const;

  std::unique_ptr<Reader> inner_;
  UndoneMap undone_;
  Catalog catalog_;
  std::vector<bool> is_checked_;  ///< By tensor: whether it was located and everything comparable was compared.
  std::vector<bool> is_located_;  ///< By stored tensor.
  std::vector<std::pair<std::uint32_t, std::uint32_t>> paddings_of_;  ///< A stored tensor and a padding in it; sorted.
  std::vector<std::uint32_t> unread_;  ///< By padding: the number of its stored tensors that are not located yet.
  std::vector<bool> is_zero_;          ///< By padding: whether it was compared.
};

/// Appends tensors of zeros, in a further file, for the padding of the output. Tensors keep their indices.
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
  bool check_container(std::uint32_t file, ContainerReport& report) const override;

 private:
  void add_zeros();

  std::unique_ptr<Reader> inner_;
  std::vector<PaddingTensor> paddings_;
  Catalog catalog_;
  std::uint32_t first_padding_ = 0;
  std::shared_ptr<const RandomReader> zeros_;
};

}  // namespace shard
