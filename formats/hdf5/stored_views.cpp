#include "formats/hdf5/stored_views.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "formats/hdf5/chunk_view.h"

namespace shard::hdf5 {

namespace {

std::shared_ptr<const RandomReader> make_view(const StoredView& view, std::int64_t bytes,
                                              const std::shared_ptr<const RandomReader>& file) {
  std::shared_ptr<const RandomReader> stored;
  std::int64_t offset = 0;
  switch (view.kind) {
    case StoredView::Kind::kFile:
      stored = file;
      offset = view.place.offset;
      break;
    case StoredView::Kind::kConstant:
      stored = constant_view(view.data, bytes, file->name());
      break;
    case StoredView::Kind::kChunk:
      stored = decoded_chunk({.file = file,
                              .place = view.place,
                              .bytes = bytes,
                              .filters = view.filters,
                              .shown = fmt::format("the chunk at {}", view.place.offset)});
      break;
  }
  if (view.code.is_plain()) return stored;
  return decoded_view::as_elements(std::move(stored), offset, bytes, view.code);
}

}  // namespace

std::shared_ptr<const RandomReader> StoredViews::get(const Catalog& catalog, std::uint32_t storage,
                                                     const std::shared_ptr<const RandomReader>& file) const {
  return cache_.get(storage, [&] { return make_view(view_of(storage), catalog.storages[storage].bytes, file); });
}

std::span<const std::byte> StoredViews::fill_of(std::uint32_t storage) const { return view_of(storage).data; }

const StoredView& StoredViews::view_of(std::uint32_t storage) const {
  return std::ranges::lower_bound(views_, storage, {}, &Numbered::storage)->view;
}

}  // namespace shard::hdf5
