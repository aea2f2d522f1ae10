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
  return cache_.get(storage, [&] {
    const auto at = std::ranges::lower_bound(views_, storage, {}, &Numbered::storage);
    return make_view(at->view, catalog.storages[storage].bytes, file);
  });
}

}  // namespace shard::hdf5
