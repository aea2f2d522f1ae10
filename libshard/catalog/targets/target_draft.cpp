#include "libshard/catalog/targets/target_draft.h"

#include <fmt/format.h>

#include <algorithm>

#include "libshard/catalog/bounds.h"
#include "libshard/core/box.h"
#include "libshard/core/hash_table.h"
#include "libshard/core/short_text.h"

namespace shard {

namespace {

/// Sorts spans, and joins those that overlap or are adjacent.
void merge(std::vector<UsedSpan>& spans) {
  std::ranges::sort(spans, {}, &UsedSpan::begin);
  std::size_t kept = 0;
  for (const UsedSpan& span : spans) {
    if (kept > 0 && span.begin <= spans[kept - 1].end) {
      spans[kept - 1].end = std::max(spans[kept - 1].end, span.end);
    } else {
      spans[kept++] = span;
    }
  }
  spans.resize(kept);
}

}  // namespace

SharingPlan::SharingPlan(const Catalog& source, const Selection& selection, bool enabled)
    : source_(source), selection_(selection), enabled_(enabled) {
  find_aliases();
  if (!enabled) return;
  group_views();
  collect_spans();
}

/// Whether the tensor is whole and in one piece, as in torch files.
bool SharingPlan::is_view(std::size_t selected) const {
  return tensor(selected).chunk_count == 1 && chunk(selected).sizes == tensor(selected).shape;
}

/// Whether its bytes can be copied unchanged, and each element has its own. A decoded storage's bytes come from
/// Reader::bytes_of.
bool SharingPlan::is_verbatim(std::size_t selected) const {
  const DType dtype = tensor(selected).dtype;
  return is_view(selected) && selection_.tensors[selected].dtype == dtype && dtype_block(dtype).elements == 1;
}

/// Aliases remain aliases if they are cast to one dtype. The first selected tensor of such a group is the original.
void SharingPlan::find_aliases() {
  alias_.assign(selection_.tensors.size(), kNoIndex);
  std::vector<bool> has_alias(source_.tensors.size());
  for (const Tensor& each : source_.tensors) {
    if (each.alias_of != kNoIndex) has_alias[each.alias_of] = true;
  }
  HashMap<std::uint64_t, std::uint32_t> first;  // The key combines the source's first alias and the requested dtype.
  for (std::uint32_t i = 0; i < alias_.size(); ++i) {
    const SelectedTensor& selected = selection_.tensors[i];
    const std::uint64_t same = source_.original_of(selected.source);
    if (!has_alias[same]) continue;
    const auto [index, is_new] = first.try_emplace(same * kDTypeCount + static_cast<std::uint64_t>(selected.dtype), i);
    if (!is_new) alias_[i] = index;
  }
}

/// Finds shared storages. Storages with several views keep them, and so does a storage with one view that is not
/// row-major. All others, which are nearly all in most checkpoints, become separate tensors.
void SharingPlan::group_views() {
  const std::size_t count = selection_.tensors.size();
  shared_.assign(count, kNoIndex);
  std::vector<std::uint32_t> views(source_.storages.size());
  for (std::size_t i = 0; i < count; ++i) {
    if (is_verbatim(i)) ++views[storage(i)];
  }
  std::vector<std::uint32_t> group(source_.storages.size(), kNoIndex);
  for (std::size_t i = 0; i < count; ++i) {
    if (!is_verbatim(i)) continue;
    if (views[storage(i)] == 1 && is_row_major(tensor(i).shape, chunk(i).strides)) continue;
    std::uint32_t& index = group[storage(i)];
    if (index == kNoIndex) {
      index = static_cast<std::uint32_t>(storages_.size());
      storages_.push_back({storage(i), {}, 0});
    }
    shared_[i] = index;
  }
}

/// Shared storages keep only the bytes that selected views use. Gaps between used spans are removed.
void SharingPlan::collect_spans() {
  std::vector<std::int64_t> largest(storages_.size(), 1);  // The size of the largest element in each storage.
  for (std::size_t i = 0; i < shared_.size(); ++i) {
    if (shared_[i] == kNoIndex || is_empty(tensor(i).shape)) continue;
    const std::int64_t bytes = element_bytes(tensor(i).dtype);
    const std::int64_t last = last_element(tensor(i).shape, chunk(i).strides, chunk(i).first);
    storages_[shared_[i]].spans.push_back({chunk(i).first * bytes, (last + 1) * bytes, 0});
    largest[shared_[i]] = std::max(largest[shared_[i]], bytes);
  }
  for (std::size_t i = 0; i < storages_.size(); ++i) {
    SharedStorage& shared = storages_[i];
    merge(shared.spans);
    // A span keeps its offset modulo the largest element, so that views of any dtype begin at whole elements.
    const std::int64_t step = largest[i];
    for (UsedSpan& span : shared.spans) {
      span.to = shared.bytes + (span.begin % step - shared.bytes % step + step) % step;
      shared.bytes = span.to + span.end - span.begin;
    }
  }
}

/// The first element of a view, after gaps before it were removed.
std::int64_t SharingPlan::first(std::size_t selected) const {
  if (is_empty(tensor(selected).shape)) return 0;
  const std::vector<UsedSpan>& spans = storages_[shared_[selected]].spans;
  const std::int64_t bytes = element_bytes(tensor(selected).dtype);
  const std::int64_t begin = chunk(selected).first * bytes;
  const UsedSpan& span = *(std::ranges::upper_bound(spans, begin, {}, &UsedSpan::begin) - 1);
  return (span.to + begin - span.begin) / bytes;
}

std::vector<std::string> SharingPlan::warnings(bool cut) const {
  if (!enabled_) return {};
  std::vector<std::uint32_t> views(source_.storages.size());  // The number of views of each storage, without aliases.
  for (std::size_t i = 0; i < alias_.size(); ++i) {
    if (is_view(i) && alias_[i] == kNoIndex) ++views[storage(i)];
  }
  FirstNames apart;
  for (std::size_t i = 0; i < alias_.size(); ++i) {
    const bool is_cast = selection_.tensors[i].dtype != tensor(i).dtype;
    if (!(is_cast || cut) || !is_view(i) || alias_[i] != kNoIndex || views[storage(i)] < 2) continue;
    apart.add(selection_.tensors[i].name);
  }
  if (apart.count() == 0) return {};
  return {fmt::format("{} {}tensors no longer share storage with others: {}", apart.count(), cut ? "" : "cast ",
                      apart.text())};
}

TargetDraft::TargetDraft(const Catalog& from, const Selection& what, const FormatTraits& format)
    : source(from), selection(what), traits(format), sharing(from, what, format.sharing) {
  target.format = traits.name;
  target.metadata = source.metadata;
  if (selection.renamed) target.metadata.erase(kAliasesNote);  // The note would contain names that no longer exist.
  target.originals = source.originals;
  target.locations = source.locations;
  target.borrowed = source.borrowed;
  target.borrowed.insert(target.borrowed.end(), {source.arena, selection.arena});
  target.rank_files = source.rank_files;
  target.tensors.reserve(selection.tensors.size());
  target.stored.reserve(selection.tensors.size());
  target.chunks.reserve(selection.tensors.size());
  target.storages.reserve(selection.tensors.size());
}

Tensor& TargetDraft::begin_tensor(std::size_t selected) {
  const SelectedTensor& from = selection.tensors[selected];
  Tensor tensor;
  tensor.name = from.name;
  tensor.path = from.path;
  tensor.shape = source_tensor(selected).shape;
  tensor.alias_of = sharing.alias(selected);
  tensor.source = from.source;
  tensor.dtype = from.dtype;
  builder.begin(tensor);
  return builder.tensor();
}

StoredTensor TargetDraft::make_stored(std::size_t selected, Dims shape) const {
  StoredTensor stored;
  stored.shape = shape;
  stored.dtype = selection.tensors[selected].dtype;
  const Tensor& tensor = source_tensor(selected);
  // torch loads no tensor of another dtype that requires gradients.
  const bool may_require_grad = is_float(stored.dtype) || is_complex(stored.dtype);
  if (tensor.chunk_count > 0) stored.requires_grad = may_require_grad && source.stored_of(tensor).requires_grad;
  return stored;
}

std::uint32_t TargetDraft::add_storage(std::size_t selected, std::int64_t bytes) {
  Storage storage;
  storage.bytes = bytes;
  const Tensor& tensor = source_tensor(selected);
  if (tensor.chunk_count > 0) storage.location = source.storage_of(tensor).location;
  return builder.add_storage(storage);
}

}  // namespace shard
