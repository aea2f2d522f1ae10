#include "formats/torch/saved_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <utility>

#include "formats/parts/decoded_view/decoded_view.h"
#include "formats/parts/decoded_view/view_cache.h"
#include "formats/torch/saved_file.h"
#include "libshard/catalog/bounds.h"
#include "libshard/core/box.h"
#include "libshard/core/checked.h"
#include "libshard/core/crc_runs.h"
#include "libshard/core/digest.h"
#include "libshard/core/error.h"
#include "libshard/core/hash_table.h"
#include "libshard/core/parallel.h"
#include "libshard/io/open_files.h"
#include "libshard/io/paths.h"

namespace shard::torch_save {

namespace {

// Checks the CRCs of records that are decoded while they are read, because later stages never see the stored bytes.

constexpr std::size_t kMostSummedRuns = 1 << 16;

class SummedRecord final : public RandomReader {
 public:
  SummedRecord(std::shared_ptr<const RandomReader> file, std::int64_t offset, std::int64_t bytes, std::uint32_t crc32,
               std::string record)
      : file_(std::move(file)), offset_(offset), bytes_(bytes), crc32_(crc32), record_(std::move(record)) {
    name_ = file_->name();
  }
  std::int64_t size() const override { return bytes_; }
  std::unique_lock<std::mutex> turn() const override { return file_->turn(); }
  std::int64_t held_bytes() const override { return file_->held_bytes(); }

  void read_at(std::int64_t offset, std::span<std::byte> out) const override {
    file_->read_at(offset_ + offset, out);
    for (const auto& [begin, end] : unsummed(offset, offset + std::ssize(out))) {
      const auto part = out.subspan(static_cast<std::size_t>(begin - offset), static_cast<std::size_t>(end - begin));
      add(begin, end - begin, crc32(part));
    }
  }

 private:
  std::vector<CrcRuns::Range> unsummed(std::int64_t begin, std::int64_t end) const {
    const std::scoped_lock lock(mutex_);
    return is_over_ ? std::vector<CrcRuns::Range>() : runs_.missing(begin, end);
  }

  void add(std::int64_t offset, std::int64_t bytes, std::uint32_t crc) const {
    const std::scoped_lock lock(mutex_);
    if (is_over_ || !runs_.add(offset, bytes, crc)) return;
    const bool is_whole = runs_.covers(bytes_);
    is_over_ = is_whole || runs_.runs().size() > kMostSummedRuns;
    if (!is_whole) return;
    const std::uint32_t found = runs_.runs().begin()->second.crc;
    if (found == crc32_) return;
    throw Error(ErrorCode::kCorruption, fmt::format("record '{}' does not match its checksum", record_))
        .in_file(name_)
        .because("the file changed after it was written")
        .of_kind(FindingKind::kCrcMismatch)
        .expected(fmt::format("CRC-32 {:08x}", crc32_))
        .found(fmt::format("{:08x}", found))
        .hint("download the file again, or restore it from a backup");
  }

  const std::shared_ptr<const RandomReader> file_;
  const std::int64_t offset_, bytes_;
  const std::uint32_t crc32_;
  const std::string record_;
  mutable std::mutex mutex_;
  mutable CrcRuns runs_;
  mutable bool is_over_ = false;  ///< The record is complete, or summing it would take too much memory.
};

/// Shows bytes [offset, offset + bytes) of `file`, starting at 0. Every byte that is read is added to a CRC once, in
/// any order, unless the reads come in very many pieces.
/// \throws Error kCorruption (kind crc_mismatch)  from the read that completes the record, if its CRC differs from
///   `crc32`; messages call it `record`
/// Threads: safe. Memory: at most 65,536 runs. Cost: a CRC-32 of the bytes read.
std::shared_ptr<const RandomReader> summed_record(std::shared_ptr<const RandomReader> file, std::int64_t offset,
                                                  std::int64_t bytes, std::uint32_t crc32, std::string record) {
  return std::make_shared<SummedRecord>(std::move(file), offset, bytes, crc32, std::move(record));
}

constexpr std::size_t kMaxLocations = 4096;  // The largest number of devices; no real file names more.

/// A file by its number, opened for each read, so that thousands of zips need no descriptors.
class FileByNumber final : public RandomReader {
 public:
  FileByNumber(OpenFiles& files, std::uint32_t number) : files_(files), number_(number) {
    const auto file = files_.get(number);
    name_ = file->name();
    size_ = file->size();
    identity_ = file->identity();
  }
  void read_at(std::int64_t offset, std::span<std::byte> out) const override {
    files_.get(number_)->read_at(offset, out);
  }
  void read_many(std::span<const RangedRead> ranges) const override { files_.get(number_)->read_many(ranges); }
  std::int64_t size() const override { return size_; }
  FileIdentity identity() const override { return identity_; }
  std::int64_t allocated_bytes(std::int64_t offset, std::int64_t count) const override {
    return files_.get(number_)->allocated_bytes(offset, count);
  }

 private:
  OpenFiles& files_;
  std::uint32_t number_;
  std::int64_t size_ = 0;
  FileIdentity identity_;
};

/// \throws Error kCorruption  bytes [offset, offset + count) extend past `reader`, which is in memory.
void check_inside(const RandomReader& reader, std::int64_t offset, std::size_t count) {
  if (offset >= 0 && checked_add(offset, static_cast<std::int64_t>(count)) <= reader.size()) return;
  throw Error(ErrorCode::kCorruption, "a read past the end").in_file(reader.name()).of_kind(FindingKind::kTruncated);
}

/// The bytes of a pickle, or of a file that is already in memory.
class BytesInMemory final : public RandomReader {
 public:
  BytesInMemory(std::string_view bytes, std::string name) : bytes_(std::as_bytes(std::span(bytes))) {
    name_ = std::move(name);
  }
  void read_at(std::int64_t offset, std::span<std::byte> out) const override {
    check_inside(*this, offset, out.size());
    std::copy_n(bytes_.data() + offset, out.size(), out.data());
  }
  std::int64_t size() const override { return static_cast<std::int64_t>(bytes_.size()); }

 private:
  std::span<const std::byte> bytes_;
};

/// The upper halves of float32 elements in a pickle: the bfloat16 elements from which they were widened. Not copied,
/// because any number of tensors may share one array.
class UpperHalves final : public RandomReader {
 public:
  UpperHalves(std::string_view floats, bool big_endian, std::string name)
      : floats_(std::as_bytes(std::span(floats))), half_(big_endian ? 0 : 2) {
    name_ = std::move(name);
  }
  void read_at(std::int64_t offset, std::span<std::byte> out) const override {
    check_inside(*this, offset, out.size());
    auto at = static_cast<std::size_t>(offset);
    for (std::byte& each : out) {
      each = floats_[at / 2 * 4 + half_ + at % 2];
      ++at;
    }
  }
  std::int64_t size() const override { return static_cast<std::int64_t>(floats_.size() / 2); }

 private:
  std::span<const std::byte> floats_;
  std::size_t half_;  ///< The offset of the upper half in an element.
};

/// The record of a storage of the catalog, and the way in which its elements are decoded.
struct StorageSource {
  std::uint32_t record = kNoIndex;  ///< kNoIndex if the bytes are in the pickle.
  decoded_view::ElementCode code;
  std::int64_t offset = -1;       ///< The offset of the record in the file.
  std::uint32_t next = kNoIndex;  ///< The next storage over the same record.
  std::string_view inside;
  bool inside_widened = false;  ///< See TensorView.
};

/// The storages of one file that are to be located, with their records and the records' offsets in the file.
struct RecordsOfFile {
  std::uint32_t file;
  std::vector<std::uint32_t> storages, records;
  std::vector<std::int64_t> offsets;  ///< Empty if they are unknown.
};

}  // namespace

struct SavedFiles::Impl {
  struct Opened {
    std::string name;                               ///< The name with which the file is opened again.
    std::shared_ptr<const RandomReader> in_memory;  ///< Null if the file is opened by its name.
    std::unique_ptr<SavedFile> saved;               ///< Null if the file is damaged.
    std::vector<std::uint32_t> first;               ///< The first storage of each record.
  };

  const SourceStore& store;
  Catalog& catalog;
  SavedFilesOptions options;
  mutable OpenFiles files;
  std::vector<Opened> opened;          ///< By file number.
  std::vector<StorageSource> sources;  ///< By storage.
  HashMap<std::string_view, std::uint16_t> locations;
  mutable decoded_view::ViewCache decoders;

  Impl(const SourceStore& file_system, Catalog& target, SavedFilesOptions given)
      : store(file_system), catalog(target), options(std::move(given)), files([this](std::uint32_t index) {
          const std::string& name = opened[index].name;
          return options.folder.empty() ? store.open(name) : store.open_below(options.folder, name);
        }) {}

  const SavedFile& saved(std::uint32_t file) const { return *opened[file].saved; }
  std::shared_ptr<const RandomReader> file(std::uint32_t index) const {
    return opened[index].in_memory != nullptr ? opened[index].in_memory : files.get(index);
  }

  /// Opens the last of `opened`, whose bytes `file` reads.
  Value* open(std::shared_ptr<const RandomReader> file, Arena& tree) {
    Opened& last = opened.back();
    catalog.files.back().bytes = file->size();
    catalog.files.back().identity = file->identity();
    catalog.arena->earn(0, file->allocated_bytes(0, file->size()));
    last.saved =
        open_saved_file(std::move(file), tree, {catalog.files.back().path, options.opaque_globals, options.findings});
    last.first.assign(last.saved->record_count(), kNoIndex);
    if (!last.saved->lost_note().empty()) catalog.metadata.try_emplace(kLostNote, last.saved->lost_note());
    return &last.saved->root();
  }

  /// Finds the offsets of several files at one time on a disk with long round trips. Ignores failures, which the caller
  /// meets again.
  void look_ahead(std::span<RecordsOfFile> all) const {
    const int at_once = all.size() < 2 ? 1 : file(all.front().file)->requests_at_once();
    if (at_once < 2) return;
    for_each_index(all.size(), at_once, [&](std::size_t i) {
      try {
        all[i].offsets = saved(all[i].file).locate_all(all[i].records);
      } catch (const Error&) {
      }
    });
  }

  /// The record and the decoding of `view`, not located yet. \throws Error kCorruption
  StorageSource source_of(std::uint32_t file, const TensorView& view) const {
    StorageSource source;
    const SavedFile& saved_file = saved(file);
    source.inside = view.inside.value_or(std::string_view());
    source.inside_widened = view.inside_widened;
    if (!view.inside) source.record = record_of(file, view);
    const bool is_swapped = view.inside ? view.inside_swapped : saved_file.is_big_endian();
    if (is_swapped) source.code.swap_bytes = decoded_view::swapped_bytes(view.storage_dtype);
    source.code.conj = view.conj;
    source.code.neg = view.neg;
    if (view.conj || view.neg) source.code.dtype = view.dtype;
    return source;
  }

  std::uint32_t record_of(std::uint32_t file, const TensorView& view) const {
    const SavedFile& saved_file = saved(file);
    const std::uint32_t number = saved_file.find(view.key);
    if (number == kNoIndex && options.findings->goes_on()) {
      throw Error(ErrorCode::kCorruption, saved_file.why_lost(view.key));
    }
    if (number == kNoIndex) {
      throw Error(ErrorCode::kCorruption, fmt::format("the storage's record data/{} is missing", view.key))
          .in_file(catalog.files[file].path)
          .of_kind(FindingKind::kMissingFile);
    }
    const std::int64_t bytes = saved_file.record(number).bytes;
    if (bytes == view.storage_bytes) return number;
    throw Error(ErrorCode::kCorruption, fmt::format("the storage's record {} has {} bytes, but the pickle records {}",
                                                    saved_file.record_name(number), bytes, view.storage_bytes))
        .in_file(catalog.files[file].path)
        .of_kind(FindingKind::kShapeMismatch)
        .expected(view.storage_bytes)
        .found(bytes);
  }

  bool is_plain(std::uint32_t file, const StorageSource& source) const {
    return source.record != kNoIndex && source.code.is_plain() &&
           saved(file).record(source.record).coding == SavedRecord::Coding::kPlain;
  }

  bool is_stream(std::uint32_t file, const StorageSource& source) const {
    return source.record != kNoIndex && saved(file).record(source.record).coding == SavedRecord::Coding::kDeflated;
  }

  /// The CRC of the plain elements, if the file has one.
  std::optional<std::uint32_t> crc32_of(std::uint32_t file, const StorageSource& source) const {
    if (source.record == kNoIndex || !source.code.is_plain()) return std::nullopt;
    return saved(file).record(source.record).crc32;
  }

  static std::shared_ptr<const RandomReader> open_inside(const StorageSource& source, const std::string& name) {
    if (!source.inside_widened) return std::make_shared<BytesInMemory>(source.inside, name);
    return std::make_shared<UpperHalves>(source.inside, source.code.swap_bytes > 1, name);
  }

  /// A view of the plain elements of a located source.
  std::shared_ptr<const RandomReader> open_source(std::uint32_t file, const StorageSource& source) const {
    std::shared_ptr<const RandomReader> from;
    std::int64_t offset = 0, bytes = 0;
    if (source.record == kNoIndex) {
      from = open_inside(source, catalog.files[file].path);
      bytes = from->size();
    } else {
      const SavedRecord record = saved(file).record(source.record);
      from = this->file(file);
      offset = source.offset;
      bytes = record.bytes;
      if (record.coding == SavedRecord::Coding::kOther) {
        throw Error(ErrorCode::kUnsupported, fmt::format("record {} is compressed in a way that this build cannot read",
                                                         saved(file).record_name(source.record)))
            .in_file(catalog.files[file].path);
      }
      if (record.coding == SavedRecord::Coding::kDeflated) {
        from = decoded_view::decompressed({from, offset, record.stored_bytes, bytes, decoded_view::Codec::kDeflate,
                                           saved(file).record_name(source.record)});
        offset = 0;
      }
      if (!source.code.is_plain() && record.crc32) {
        from = summed_record(std::move(from), offset, bytes, *record.crc32, saved(file).record_name(source.record));
        offset = 0;
      }
    }
    if (source.code.is_plain()) return from;
    return decoded_view::as_elements(std::move(from), offset, bytes, source.code);
  }

  std::uint16_t location_of(std::string_view location) {
    if (const std::uint16_t* known = locations.find(location)) return *known;
    if (catalog.locations.size() >= kMaxLocations) {
      throw Error(ErrorCode::kUnsupported, fmt::format("the tensors are on more than {} devices", kMaxLocations));
    }
    const auto index = static_cast<std::uint16_t>(catalog.locations.size());
    catalog.locations.emplace_back(location);
    locations.try_emplace(catalog.arena->copy(location), index);
    return index;
  }

  std::uint32_t add_lost(std::uint32_t file, const TensorView& view, const Error& why) {
    const auto index = static_cast<std::uint32_t>(catalog.storages.size());
    catalog.storages.push_back({.bytes = view.storage_bytes, .file = file, .location = location_of(view.location)});
    sources.resize(index + 1);
    options.findings->lose_storage(index, why);
    return index;
  }

  std::uint32_t add_storage(std::uint32_t file, const TensorView& view, const StorageSource& source) {
    const auto index = static_cast<std::uint32_t>(catalog.storages.size());
    catalog.storages.push_back({.bytes = view.storage_bytes,
                                .file = file,
                                .location = location_of(view.location),
                                .plain = is_plain(file, source),
                                .is_stream = is_stream(file, source),
                                .crc32 = crc32_of(file, source)});
    sources.resize(index);  // Storages that other code added have no source here.
    sources.push_back(source);
    return index;
  }
};

SavedFiles::SavedFiles(const SourceStore& store, Catalog& catalog, const SavedFilesOptions& options)
    : impl_(std::make_unique<Impl>(store, catalog, options)) {
  for (std::size_t i = 0; i < catalog.locations.size(); ++i) {
    impl_->locations.try_emplace(catalog.arena->copy(catalog.locations[i]), static_cast<std::uint16_t>(i));
  }
}

SavedFiles::~SavedFiles() = default;

Value* SavedFiles::add(const std::string& name, Arena* tree) {
  Catalog& catalog = impl_->catalog;
  const auto index = static_cast<std::uint32_t>(catalog.files.size());
  catalog.files.push_back({impl_->options.folder.empty() ? base_name(name) : name, 0, -1});
  impl_->opened.resize(index + 1);
  impl_->opened[index].name = name;
  return impl_->open(std::make_shared<FileByNumber>(impl_->files, index), tree != nullptr ? *tree : *catalog.arena);
}

Value* SavedFiles::add_bytes(std::string_view bytes, const std::string& shown) {
  impl_->catalog.files.push_back({shown, 0, -1});
  impl_->opened.resize(impl_->catalog.files.size());
  impl_->opened.back().in_memory = std::make_shared<BytesInMemory>(bytes, shown);
  return impl_->open(impl_->opened.back().in_memory, *impl_->catalog.arena);
}

std::string_view SavedFiles::version(std::uint32_t file) const { return impl_->saved(file).version(); }

std::string_view SavedFiles::saved_as(std::uint32_t file) const {
  return impl_->opened[file].saved == nullptr ? std::string_view() : impl_->saved(file).saved_as();
}

std::uint32_t SavedFiles::storage_of(std::uint32_t file, const TensorView& view) {
  StorageSource source;
  try {
    source = impl_->source_of(file, view);
  } catch (const Error& error) {
    if (!impl_->options.findings->goes_on() || !is_damage(error)) throw;
    return impl_->add_lost(file, view, error);
  }
  if (source.record == kNoIndex) return impl_->add_storage(file, view, source);
  std::uint32_t& first = impl_->opened[file].first[source.record];
  for (std::uint32_t i = first; i != kNoIndex; i = impl_->sources[i].next) {
    if (impl_->sources[i].code == source.code) return i;
  }
  source.next = first;
  first = impl_->add_storage(file, view, source);
  return first;
}

Findings& SavedFiles::findings() const { return *impl_->options.findings; }

bool SavedFiles::is_lost(std::uint32_t storage) const { return findings().lost_storage(storage) != nullptr; }

void SavedFiles::locate(std::vector<std::uint32_t> storages) {
  Catalog& catalog = impl_->catalog;
  std::vector<StorageSource>& sources = impl_->sources;
  std::erase_if(storages, [&](std::uint32_t i) { return catalog.storages[i].offset >= 0; });
  std::ranges::sort(storages, {}, [&](std::uint32_t i) {
    const std::uint32_t file = catalog.storages[i].file, record = sources[i].record;
    return std::pair(file, record == kNoIndex ? -1 : impl_->saved(file).record(record).order);
  });
  const auto repeated = std::ranges::unique(storages);
  storages.erase(repeated.begin(), repeated.end());
  std::vector<RecordsOfFile> files;
  for (const std::uint32_t i : storages) {
    if (sources[i].record == kNoIndex) {
      catalog.storages[i].offset = 0;
      continue;
    }
    const std::uint32_t file = catalog.storages[i].file;
    if (files.empty() || files.back().file != file) files.push_back({file, {}, {}, {}});
    files.back().storages.push_back(i);
    files.back().records.push_back(sources[i].record);
  }
  impl_->look_ahead(files);
  for (RecordsOfFile& each : files) {
    if (each.offsets.empty()) each.offsets = impl_->saved(each.file).locate_all(each.records);
    for (std::size_t k = 0; k < each.storages.size(); ++k) {
      const std::uint32_t i = each.storages[k];
      sources[i].offset = each.offsets[k];
      catalog.storages[i].offset = catalog.storages[i].plain ? each.offsets[k] : 0;
    }
  }
}

void SavedFiles::locate_tensors(std::span<const std::uint32_t> tensors) {
  const Catalog& catalog = impl_->catalog;
  std::vector<std::uint32_t> storages;
  for (const std::uint32_t tensor : tensors) {
    for (const Chunk& chunk : catalog.chunks_of(catalog.tensors[tensor])) {
      storages.push_back(catalog.stored[chunk.stored].storage);
    }
  }
  locate(std::move(storages));
}

namespace {

/// The view's elements in row-major order. \param span  the bytes from its first element to its last
std::vector<std::int64_t> numbers_of(const TensorView& view, std::span<const std::byte> span) {
  const auto bytes = static_cast<std::size_t>(element_bytes(view.dtype));
  const std::size_t unused = 64 - 8 * bytes;
  const bool is_signed = dtype_name(view.dtype).starts_with("int");
  std::vector<std::int64_t> numbers, index(static_cast<std::size_t>(view.shape.size()), 0);
  for (std::int64_t left = checked_numel(view.shape); left > 0; --left) {
    std::size_t at = 0;
    for (int d = 0; d < view.shape.size(); ++d) {
      at += static_cast<std::size_t>(index[static_cast<std::size_t>(d)] * view.strides[d]);
    }
    std::uint64_t raw = 0;
    std::memcpy(&raw, span.data() + at * bytes, bytes);
    numbers.push_back(is_signed ? static_cast<std::int64_t>(raw << unused) >> unused : static_cast<std::int64_t>(raw));
    next_index<std::int64_t>(index, view.shape.span());
  }
  return numbers;
}

}  // namespace

std::vector<std::int64_t> SavedFiles::integers(std::uint32_t file, const TensorView& view, std::int64_t limit) {
  const std::int64_t count = checked_numel(view.shape);
  const std::int64_t span = count == 0 ? 0 : last_element(view.shape, view.strides, view.first) - view.first + 1;
  if (!is_integer(view.dtype) || count > limit || span > limit) {
    throw Error(ErrorCode::kCorruption, fmt::format("{} numbers of dtype {}, but at most {} integers are possible",
                                                    std::max(count, span), dtype_name(view.dtype), limit))
        .of_kind(FindingKind::kBadPickle);
  }
  impl_->catalog.arena->charge(Charge::kRanks, count + span);
  return numbers_of(view, read_span(file, view, span));
}

std::vector<std::byte> SavedFiles::read_span(std::uint32_t file, const TensorView& view, std::int64_t span) {
  StorageSource source = impl_->source_of(file, view);
  if (source.record != kNoIndex) source.offset = impl_->saved(file).locate(source.record);
  const std::int64_t begin = impl_->is_plain(file, source) ? source.offset : 0;
  std::vector<std::byte> bytes(static_cast<std::size_t>(span * element_bytes(view.dtype)));
  impl_->open_source(file, source)->read_at(begin + view.first * element_bytes(view.dtype), bytes);
  return bytes;
}

std::shared_ptr<const RandomReader> SavedFiles::file(std::uint32_t index) const { return impl_->file(index); }

std::shared_ptr<const RandomReader> SavedFiles::bytes_of(std::uint32_t storage) const {
  const Storage& wanted = impl_->catalog.storages[storage];
  if (wanted.plain) return file(wanted.file);
  return impl_->decoders.get(storage, [&] { return impl_->open_source(wanted.file, impl_->sources[storage]); });
}

}  // namespace shard::torch_save
