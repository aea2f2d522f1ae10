/// \file
/// A target catalog while it is made, and how entries are added to it. Inside libshard/catalog only.
#pragma once

#include <cstddef>
#include <cstdint>

#include "libshard/catalog/catalog.h"
#include "libshard/catalog/format_traits.h"
#include "libshard/catalog/selection.h"
#include "libshard/catalog/target_sharing.h"
#include "libshard/core/checked.h"

namespace shard {

/// The steps of make_target share one. `selected` is an index into Selection::tensors; target tensors have the same.
/// Ownership: source, selection and traits must outlive it.
struct TargetDraft {
  /// Notes the metadata and what is borrowed; there are no tensors yet.
  TargetDraft(const Catalog& from, const Selection& what, const FormatTraits& format);

  const Tensor& source_tensor(std::size_t selected) const { return source.tensors[selection.tensors[selected].source]; }
  /// A tensor whose chunks come next.
  Tensor& add_tensor(std::size_t selected);
  /// What a stored tensor takes over from the source's first one.
  StoredTensor make_stored(std::size_t selected, Dims shape) const;
  std::uint32_t add_stored(const StoredTensor& stored);
  /// A storage with the location of the source's first one. Its file is set by whoever knows the files.
  std::uint32_t add_storage(std::size_t selected, std::int64_t bytes);
  static std::int64_t bytes_of(Dims sizes, DType dtype) { return checked_bytes(checked_numel(sizes), dtype); }

  const Catalog& source;
  const Selection& selection;
  const FormatTraits& traits;
  const SharingPlan sharing;
  Catalog target;
};

}  // namespace shard
