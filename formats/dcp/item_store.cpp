#include "formats/dcp/item_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <tuple>

#include "formats/dcp/check_items.h"
#include "libshard/core/box.h"
#include "libshard/core/checked.h"
#include "libshard/core/error.h"
#include "libshard/core/parallel.h"

namespace shard::dcp {
namespace {

constexpr std::size_t kBatch = 8192;  // The number of items offered to one fetch.

void check_item(const Tensor& tensor, const Chunk& chunk, const StoredTensor& stored, const ItemTensor& found) {
  const auto differs = [&](std::string_view what) {
    return Error(ErrorCode::kCorruption,
                 fmt::format("tensor '{0}': .metadata states a different {2} from the item at {1}", tensor.name,
                             to_string(chunk.offsets.span()), what));
  };
  if (found.dtype != tensor.dtype) {
    throw differs("dtype")
        .expected(dtype_name(tensor.dtype))
        .found(dtype_name(found.dtype))
        .of_kind(FindingKind::kDtypeMismatch);
  }
  if (found.shape != stored.shape) {
    throw differs("shape")
        .expected(to_string(stored.shape.span()))
        .found(to_string(found.shape.span()))
        .of_kind(FindingKind::kShapeMismatch);
  }
}

/// Whether the chunks of a stored tensor are boxes of a run of elements, see TensorEntry::stored_size.
bool is_run(const Chunk& chunk, const StoredTensor& stored) { return chunk.sizes.size() != stored.shape.size(); }

/// Checks that all dimensions before a run's last one have one element.
void check_run(const Tensor& tensor, const ItemTensor& found) {
  const int last = found.shape.size() - 1;
  if (found.shape[last] <= 1 || found.strides[last] == 1) return;
  throw Error(ErrorCode::kUnsupported,
              fmt::format("tensor '{}': a run of its elements is not contiguous", tensor.name));
}

}  // namespace

ItemStore::ItemStore(const SourceStore& store, const std::string& folder, Catalog& catalog, Findings& findings)
    : catalog_(catalog),
      findings_(findings),
      opener_(*catalog.arena, findings.goes_on()),
      files_([&store, folder, &catalog](std::uint32_t index) {
        return store.open_below(folder, catalog.files[index].path);
      }) {}

void ItemStore::set_items(std::vector<Item> items) {
  items_ = std::move(items);
  catalog_.storages.resize(items_.size());
  for (std::size_t i = 0; i < items_.size(); ++i) catalog_.storages[i].file = items_[i].file;
}

std::vector<Item> ItemStore::of_file(std::uint32_t file) const {
  const auto place = [this](std::uint32_t i) { return std::pair(items_[i].file, items_[i].offset); };
  std::call_once(ordered_, [&] {
    by_place_.resize(items_.size());
    std::iota(by_place_.begin(), by_place_.end(), 0U);
    std::ranges::sort(by_place_, {}, place);
  });
  std::vector<Item> found;
  const auto of_one = std::ranges::equal_range(by_place_, file, {}, [this](std::uint32_t i) { return items_[i].file; });
  for (const std::uint32_t i : of_one) found.push_back(items_[i]);
  return found;
}

void ItemStore::earn(const RandomReader& file, const Item& item) {
  const std::int64_t size = file.size();
  const auto [left, is_new] = left_.try_emplace(item.file, size);
  if (is_new) catalog_.arena->earn(0, file.allocated_bytes(0, size));
  const std::int64_t end = checked_add(item.offset, std::clamp<std::int64_t>(item.length, 0, left));
  catalog_.arena->earn(file.allocated_bytes(item.offset, end - item.offset));
  left -= end - item.offset;
}

void ItemStore::for_each(std::vector<Wanted> wanted, const Use& use, const Fail& fail) const {
  std::sort(wanted.begin(), wanted.end(), [](const Wanted& a, const Wanted& b) {
    return std::tie(a.item.file, a.item.offset) < std::tie(b.item.file, b.item.offset);
  });
  std::vector<Item> items(wanted.size());
  std::transform(wanted.begin(), wanted.end(), items.begin(), [](const Wanted& one) { return one.item; });
  std::vector<ItemsOfFile> files;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (i == 0 || wanted[i - 1].item.file != wanted[i].item.file) files.push_back({i, i, {}, 0});
    files.back().end = i + 1;
  }
  for (std::size_t i = 0; i < files.size(); ++i) {
    if (files[i].fetched == nullptr) fetch_ahead(items, std::span(files).subspan(i));
    ItemsOfFile& each = files[i];
    const std::span<const Item> of_file = std::span(items).first(each.end);
    std::size_t batch = kBatch;
    for (std::size_t next = each.begin; next < each.end;) {
      std::size_t taken = std::exchange(each.taken, 0);
      try {
        if (each.fetched == nullptr) each.fetched = std::make_shared<FetchedFile>(file(of_file[each.begin].file));
        if (taken == 0) taken = each.fetched->fetch(of_file.subspan(next).first(std::min(batch, each.end - next)));
      } catch (Error& error) {
        if (!fail || !is_damage(error)) throw;
        if (std::exchange(batch, 1) == 1)
          fail(error, wanted[next++]);  // Otherwise finds the items that cannot be read.
      }
      for (; taken > 0; --taken, ++next) use(each.fetched, wanted[next]);
    }
    each.fetched = nullptr;
  }
}

/// Opens the first of `files` and fetches their first items, at one time on a disk with long round trips. Ignores
/// failures, which the caller meets again.
void ItemStore::fetch_ahead(std::span<const Item> items, std::span<ItemsOfFile> files) const {
  int at_once = 0;
  try {
    at_once = file(items[files.front().begin].file)->requests_at_once();
  } catch (const Error&) {
  }
  if (at_once < 2) return;
  for_each_index(std::min(files.size(), static_cast<std::size_t>(at_once)), at_once, [&](std::size_t i) {
    ItemsOfFile& each = files[i];
    try {
      auto fetched = std::make_shared<FetchedFile>(file(items[each.begin].file));
      each.taken = fetched->fetch(items.subspan(each.begin, std::min(kBatch, each.end - each.begin)));
      each.fetched = std::move(fetched);
    } catch (const Error&) {
    }
  });
}

void ItemStore::locate(std::span<const std::uint32_t> tensors) {
  std::vector<Wanted> wanted;
  for (const std::uint32_t t : tensors) {
    const Tensor& tensor = catalog_.tensors[t];
    for (std::uint32_t c = tensor.first_chunk; c < tensor.first_chunk + tensor.chunk_count; ++c) {
      const std::uint32_t stored = catalog_.chunks[c].stored;
      // A further box of the same run.
      if (c > tensor.first_chunk && catalog_.chunks[c - 1].stored == stored) continue;
      const std::uint32_t storage = catalog_.stored[stored].storage;
      if (findings_.lost_storage(storage) != nullptr) continue;
      if (catalog_.storages[storage].offset < 0) wanted.push_back({items_[storage], t, c});
    }
  }
  Fail fail;
  if (findings_.goes_on()) {
    fail = [this](Error& error, const Wanted& one) {
      error.of_tensor(catalog_.tensors[one.entry].name).in_file(catalog_.files[one.item.file].path);
      findings_.lose_storage(catalog_.stored[catalog_.chunks[one.chunk].stored].storage, error);
    };
  }
  for_each(
      std::move(wanted), [this](const std::shared_ptr<FetchedFile>& file, const Wanted& one) { locate_one(file, one); },
      fail);
}

void ItemStore::locate_one(const std::shared_ptr<FetchedFile>& file, const Wanted& one) {
  const Tensor& tensor = catalog_.tensors[one.entry];
  const Chunk& chunk = catalog_.chunks[one.chunk];
  StoredTensor& stored = catalog_.stored[chunk.stored];
  bool is_open = false;
  try {
    if (one.item.zstd || findings_.goes_on()) earn(*file, one.item);  // All of it is read.
    const ItemTensor found = opener_.open(file, one.item, catalog_.storages[stored.storage].bytes);
    is_open = true;
    check_item(tensor, chunk, stored, found);
    if (is_run(chunk, stored)) check_run(tensor, found);
    resolve(stored.storage, found.location);
    place_chunks(tensor, one.chunk, found);
    stored.strides = found.strides;
    stored.first = found.first;
  } catch (Error& error) {
    error.of_tensor(tensor.name).in_file(catalog_.files[one.item.file].path);
    if (findings_.goes_on() && is_unread(error)) {
      if (unread_.empty() || unread_.back().tensor != one.entry) unread_.push_back({one.entry, error});
      return;
    }
    if (error.code() == ErrorCode::kUnsupported && error.hint().empty()) error.suggest(Remedy::kExclude, tensor.name);
    if (!findings_.goes_on() || !is_damage(error)) throw;
    if (is_open) misplaced_.try_emplace(one.item.file, misplaced(error.what()).in_file(error.file()));
    findings_.lose_storage(stored.storage, error);
  }
}

void ItemStore::look_for_misplaced() {
  for (std::uint32_t index = 0; index < catalog_.files.size(); ++index) look_into(index);
}

void ItemStore::lose_misplaced() {
  for (std::uint32_t item = 0; item < items_.size(); ++item) {
    if (const Error* const why = misplaced_.find(items_[item].file)) findings_.lose_storage(item, *why);
  }
}

void ItemStore::look_into(std::uint32_t index) {
  const std::vector<Item> items = of_file(index);
  if (items.empty() || catalog_.files[index].bytes == 0 || misplaced_.contains(index)) return;
  try {
    std::optional<Error> why = misplaced_items(file(index), items, *catalog_.arena);
    if (why) misplaced_.try_emplace(index, why->in_file(catalog_.files[index].path));
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kNotFound) throw;  // Unreadable bytes prove nothing.
  }
}

void ItemStore::place_chunks(const Tensor& tensor, std::uint32_t first, const ItemTensor& found) {
  const std::uint32_t stored = catalog_.chunks[first].stored, end = tensor.first_chunk + tensor.chunk_count;
  for (std::uint32_t c = first; c < end && catalog_.chunks[c].stored == stored; ++c) {
    Chunk& chunk = catalog_.chunks[c];
    if (!is_run(chunk, catalog_.stored[stored])) chunk.strides = found.strides;
    chunk.first = checked_add(chunk.first - catalog_.stored[stored].first, found.first);
  }
}

void ItemStore::resolve(std::uint32_t index, const Location& location) {
  Storage& storage = catalog_.storages[index];
  storage.offset = location.offset;
  storage.bytes = location.bytes;
  storage.plain = !location.decoding;
  storage.is_stream = location.decoding && (location.decoding->deflated || location.decoding->item.zstd);
  if (location.decoding) decodings_.try_emplace(index, *location.decoding);
  storage.crc32 = location.crc32;
}

void ItemStore::resolve_whole(std::uint32_t item) {
  catalog_.storages[item].offset = items_[item].offset;
  catalog_.storages[item].bytes = items_[item].length;
}

std::uint32_t ItemStore::add_storage(const Location& location, std::uint32_t file) {
  const auto index = static_cast<std::uint32_t>(catalog_.storages.size());
  catalog_.storages.emplace_back().file = file;
  resolve(index, location);
  return index;
}

std::shared_ptr<const RandomReader> ItemStore::bytes_of(std::uint32_t storage) const {
  if (catalog_.storages[storage].plain) return file(catalog_.storages[storage].file);
  return views_.get(storage,
                    [&] { return decoded_view(file(catalog_.storages[storage].file), *decodings_.find(storage)); });
}

}  // namespace shard::dcp
