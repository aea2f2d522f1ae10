#include "libshard/verify/data_pass.h"

#include <fmt/format.h>

#include <algorithm>

#include "libshard/catalog/catalog_builder.h"
#include "libshard/core/box.h"
#include "libshard/core/checked.h"
#include "libshard/core/digest.h"
#include "libshard/core/error.h"
#include "libshard/core/parallel.h"
#include "libshard/exec/buffer_pool.h"
#include "libshard/exec/tensor_reader.h"
#include "libshard/ranks/wire.h"
#include "libshard/verify/verify_findings.h"

namespace shard {

namespace {

constexpr std::int64_t kMostUnits = 1 << 16;               // The units of one file.
constexpr std::int64_t kMostHole = std::int64_t{1} << 60;  // The bytes of a hole that are skipped at one time.

bool is_located(const Catalog& catalog, const Chunk& chunk) { return catalog.storage_of(chunk).offset >= 0; }

/// Two chunks of the same bytes are trivially equal.
bool is_same_place(const Catalog& catalog, const Chunk& a, const Chunk& b) {
  return catalog.stored[a.stored].storage == catalog.stored[b.stored].storage && a.first == b.first &&
         a.strides == b.strides;
}

/// Pairs each replica with the first one of its box. Chunks are sorted, so replicas are adjacent.
void add_pairs(const Catalog& catalog, std::uint32_t index, std::vector<ReplicaPair>& pairs) {
  const Tensor& tensor = catalog.tensors[index];
  std::uint32_t first = tensor.first_chunk;
  for (std::uint32_t i = first + 1; i < tensor.first_chunk + tensor.chunk_count; ++i) {
    const Chunk &a = catalog.chunks[first], &b = catalog.chunks[i];
    if (a.offsets != b.offsets || a.sizes != b.sizes) {
      first = i;
      continue;
    }
    const std::int64_t bytes = checked_bytes(checked_numel(b.sizes.span()), tensor.dtype);
    const bool can_differ = bytes > 0 && !is_same_place(catalog, a, b);
    if (can_differ && is_located(catalog, a) && is_located(catalog, b)) pairs.push_back({index, first, i, bytes});
  }
}

/// Adds the tensor that consists of one chunk of another tensor.
void add_chunk(const Catalog& from, const ReplicaPair& pair, std::uint32_t chunk, Catalog& to) {
  const Tensor& tensor = from.tensors[pair.tensor];
  Chunk whole = from.chunks[chunk];
  whole.offsets = to.arena->zeros(whole.sizes.size());
  CatalogBuilder builder(to);
  builder.begin(tensor.name, {}, tensor.dtype, whole.sizes);
  builder.add_chunk(whole);
}

constexpr std::int64_t kRead = 256 << 10;    // Small enough to stay in a core's cache between the hashes.
constexpr std::int64_t kSlowRead = 1 << 20;  // On a disk where each read has a long round trip.

}  // namespace

void StoredCrcs::set(std::uint32_t file, std::string name, std::vector<StoredCrc> runs) {
  names_[file] = std::move(name);
  std::ranges::sort(runs, {}, &StoredCrc::offset);
  by_file_[file] = std::move(runs);
}

/// A run may be read in parts by several threads and ranks. Its CRC-32 is compared when the parts cover it.
void StoredCrcs::add(std::uint32_t file, std::size_t index, std::int64_t offset, std::int64_t bytes,
                     std::uint32_t crc) {
  const StoredCrc& run = by_file_[file][index];
  if (bytes == run.bytes) return compare(file, run, crc);
  std::uint32_t found = 0;
  {
    const std::scoped_lock lock(mutex_);
    const auto begun = begun_.try_emplace({file, index}).first;
    begun->second.add(offset, bytes, crc);
    if (!begun->second.covers(run.bytes)) return;
    found = begun->second.runs().begin()->second.crc;
    begun_.erase(begun);
  }
  compare(file, run, found);
}

void StoredCrcs::compare(std::uint32_t file, const StoredCrc& run, std::uint32_t found) {
  ++compared_;
  if (found == run.crc32) return;
  findings_.report(Error(ErrorCode::kCorruption, fmt::format("{} does not match its checksum", run.name))
                       .in_file(names_[file])
                       .of_tensor(tensor_in(file, run))
                       .because("the file changed after it was written")
                       .of_kind(FindingKind::kCrcMismatch)
                       .expected(fmt::format("CRC-32 {:08x}", run.crc32))
                       .found(fmt::format("{:08x}", found))
                       .hint("download the file again, or restore it from a backup"));
}

/// The first tensor by name that has elements in the run, or an empty string if none has.
std::string StoredCrcs::tensor_in(std::uint32_t file, const StoredCrc& run) {
  std::call_once(has_places_, [this] {
    for (std::uint32_t i = 0; i < catalog_.tensors.size(); ++i) {
      for (const Chunk& chunk : catalog_.chunks_of(catalog_.tensors[i])) {
        const Storage& storage = catalog_.storage_of(chunk);
        if (storage.plain) places_.push_back({storage.file, storage.offset, i});
      }
    }
    std::ranges::sort(places_);
  });
  std::uint32_t first = kNoIndex;
  for (auto place = std::ranges::lower_bound(places_, Place{file, run.offset, 0});
       place != places_.end() && place->file == file && place->offset < run.end(); ++place) {
    first = std::min(first, place->tensor);
  }
  return first == kNoIndex ? std::string() : std::string(catalog_.tensors[first].name);
}

/// Sends the incomplete runs to rank 0, where the parts of all ranks are joined.
void StoredCrcs::gather(Group& group) {
  const auto write = [&](WireWriter& own) {
    own.number(compared_);
    for (const auto& [place, runs] : begun_) {
      for (const auto& [offset, run] : runs.runs()) {
        for (const std::int64_t number : {std::int64_t{place.first}, static_cast<std::int64_t>(place.second), offset,
                                          run.bytes, std::int64_t{run.crc}}) {
          own.number(number);
        }
      }
    }
  };
  const auto read = [&](WireReader& from) {
    compared_ += from.number();
    while (!from.at_end()) {
      const std::int64_t file = from.number_below(std::ssize(by_file_));
      const std::int64_t run = from.number_below(std::ssize(by_file_[static_cast<std::size_t>(file)]));
      const std::int64_t offset = from.number(), bytes = from.number(), crc = from.number();
      add(static_cast<std::uint32_t>(file), static_cast<std::size_t>(run), offset, bytes,
          static_cast<std::uint32_t>(crc));
    }
  };
  send_to_first(group, write, read);
}

std::vector<ReplicaPair> replica_pairs(const Catalog& catalog) {
  std::vector<ReplicaPair> pairs;
  for (std::uint32_t i = 0; i < catalog.tensors.size(); ++i) {
    const Tensor& tensor = catalog.tensors[i];
    if (!tensor.damaged && tensor.alias_of == kNoIndex && tensor.chunk_count > 1) add_pairs(catalog, i, pairs);
  }
  return pairs;
}

/// A catalog with two tensors for each pair, so that replicas in any stored order can be read in row-major order.
ReplicaCompare::ReplicaCompare(const Reader& reader, std::span<const ReplicaPair> pairs, std::int64_t max_memory_bytes,
                               Progress& progress, Findings& findings, bool may_differ)
    : reader_(reader),
      pairs_(pairs),
      first_pool_(max_memory_bytes / 4),
      other_pool_(max_memory_bytes / 4),
      progress_(progress),
      findings_(findings),
      may_differ_(may_differ) {
  if (pairs.empty()) return;
  const Catalog& source = reader.catalog();
  catalog_.files = source.files;
  catalog_.storages = source.storages;
  for (Storage& storage : catalog_.storages) storage.crc32.reset();  // CRC-32s are checked with the files.
  catalog_.stored = source.stored;
  for (const ReplicaPair& pair : pairs) {
    add_chunk(source, pair, pair.first, catalog_);
    add_chunk(source, pair, pair.other, catalog_);
  }
}

void ReplicaCompare::compare(std::size_t index, const std::stop_token& stop) {
  const auto tensor = static_cast<std::uint32_t>(2 * index);
  TensorReader first(catalog_, reader_, tensor, progress_, throwing_findings(), &first_pool_);
  TensorReader other(catalog_, reader_, tensor + 1, progress_, throwing_findings(), &other_pool_);
  const Tensor& view = catalog_.tensors[tensor];
  const auto element = first_difference(first, other, checked_numel(view.shape.span()), view.dtype, stop);
  if (element) report(pairs_[index], *element);
}

void ReplicaCompare::report(const ReplicaPair& pair, std::int64_t element) const {
  const Catalog& source = reader_.catalog();
  const auto stored = [&](std::uint32_t chunk) -> const StoredTensor& {
    return source.stored[source.chunks[chunk].stored];
  };
  const auto file = [&](std::uint32_t chunk) -> const std::string& {
    return source.files[source.storages[stored(chunk).storage].file].path;
  };
  Error error(ErrorCode::kCorruption,
              fmt::format("the replica of its box at {} differs from that in {}, first at element {} of the box",
                          to_string(source.chunks[pair.other].offsets.span()), file(pair.first), element));
  error.in_file(file(pair.other)).of_tensor(source.tensors[pair.tensor].name).of_kind(FindingKind::kReplicaMismatch);
  if (stored(pair.other).rank >= 0) error.of_rank(stored(pair.other).rank);
  if (may_differ_) {
    return findings_.warn(error.because("each rank may have its own values, such as batch statistics"));
  }
  findings_.report(error.because("one of them is damaged, or the ranks were out of step when they saved"));
}

/// Reads units, one at a time.
class DataPass::Worker {
 public:
  Worker(DataPass& pass, const std::stop_token& stop) : pass_(pass), parts_(pass.parts_), stop_(stop) {}

  void read(const Unit& unit) {
    if (unit.kind == Unit::Kind::kPair) return parts_.replicas->compare(unit.index, stop_);
    unit.kind == Unit::Kind::kBlock ? read_blocks(unit) : read_decoded(parts_.decoded[unit.index]);
  }

 private:
  /// Calls `each(offset, piece)` for all of [begin, end), in order.
  template <class Each>
  void for_each_piece(const RandomReader& file, std::int64_t begin, std::int64_t end, const Each& each) {
    const std::int64_t most = file.requests_at_once() > 1 ? kSlowRead : kRead;
    const std::span<std::byte> buffer = buffer_.ensure(most);
    for (std::int64_t at = begin; at < end; at += most) {
      check_stop(stop_);
      const auto piece = buffer.first(static_cast<std::size_t>(std::min(most, end - at)));
      file.read_at(at, piece);
      pass_.progress_.bytes_read.fetch_add(static_cast<std::int64_t>(piece.size()), std::memory_order_relaxed);
      each(at, std::span<const std::byte>(piece));
    }
  }

  /// Reads one block, or the whole file if its hash covers the whole file.
  void read_blocks(const Unit& unit) {
    const PassFile& file = parts_.files[unit.index];
    std::optional<Hasher> whole;
    if (!file.sha256.empty()) whole.emplace(HashAlgorithm::kSha256);
    std::int64_t most = unit.bytes();  // A hole may extend over many blocks.
    for (Unit block = unit; block.begin < unit.end;) {
      block.end = block.begin + std::min(most, unit.end - block.begin);
      const bool is_skipped = is_hole(block);
      if (!is_skipped && most > kManifestBlock) {
        most = kManifestBlock;
        continue;
      }
      if (!is_skipped) read_block(block, whole ? &*whole : nullptr);
      if (is_skipped) most = std::min(2 * most, kMostHole);
      block.begin = block.end;
    }
    if (whole) check_whole(file, whole->finish_hex());
  }

  /// Whether the unit has no bytes that could be lost, and nothing needs its zeros. A sparse file may claim any size.
  bool is_hole(const Unit& unit) {
    const PassFile& file = parts_.files[unit.index];
    if (file.stated || !file.sha256.empty()) return false;
    begin_runs(file, unit);
    if (run_ < runs_.size() && runs_[run_].offset < unit.end) return false;
    return pass_.open(unit.index)->allocated_bytes(unit.begin, unit.bytes()) == 0;
  }

  void read_block(const Unit& unit, Hasher* whole) {
    const PassFile& file = parts_.files[unit.index];
    begin_runs(file, unit);
    std::optional<Hasher> hasher;
    if (file.stated) hasher.emplace(parts_.stated->manifest.algorithm);
    const std::shared_ptr<const RandomReader> opened = pass_.open(unit.index);
    for_each_piece(*opened, unit.begin, unit.end, [&](std::int64_t at, std::span<const std::byte> piece) {
      sum(file, unit, at, piece);
      if (hasher) hasher->update(piece);
      if (whole != nullptr) whole->update(piece);
    });
    if (hasher) parts_.manifest->compare(*file.stated, unit.begin / kManifestBlock, hasher->finish_hex());
  }

  void check_whole(const PassFile& file, const std::string& found) const {
    if (found == file.sha256) return;
    parts_.findings->report(Error(ErrorCode::kCorruption, "the file does not match its SHA-256 in integrity.json")
                                .in_file(file.path)
                                .of_kind(FindingKind::kHashMismatch)
                                .expected(file.sha256)
                                .found(found)
                                .hint("download the file again, or restore it from a backup"));
  }

  /// Finds the first run that ends after the unit's begin.
  void begin_runs(const PassFile& file, const Unit& unit) {
    runs_ = file.file == kNoIndex || parts_.sums == nullptr ? std::span<const StoredCrc>() : parts_.sums->of(file.file);
    const auto first = std::ranges::upper_bound(runs_, unit.begin, {}, &StoredCrc::end);
    run_ = static_cast<std::size_t>(first - runs_.begin());
    crc_ = 0;
  }

  /// Adds a piece to the CRC-32s of its runs. Invariant: crc_ covers the unit's part of run run_ before `at`.
  void sum(const PassFile& file, const Unit& unit, std::int64_t at, std::span<const std::byte> piece) {
    const std::int64_t end = at + static_cast<std::int64_t>(piece.size());
    while (run_ < runs_.size() && runs_[run_].offset < end) {
      const StoredCrc& run = runs_[run_];
      const std::int64_t from = std::max(at, run.offset), to = std::min(end, run.end());
      crc_ = crc32(piece.subspan(static_cast<std::size_t>(from - at), static_cast<std::size_t>(to - from)), crc_);
      const bool is_complete = run.end() <= end;
      if (is_complete || end == unit.end) {
        const std::int64_t begin = std::max(unit.begin, run.offset);
        parts_.sums->add(file.file, run_, begin - run.offset, to - begin, crc_);
      }
      if (!is_complete) return;
      ++run_;
      crc_ = 0;
    }
  }

  void read_decoded(const DecodedRun& decoded) {
    const CrcRange& run = decoded.bytes;
    std::uint32_t crc = 0;
    for_each_piece(*run.decoded(), run.offset, run.offset + run.bytes,
                   [&](std::int64_t, std::span<const std::byte> piece) { crc = crc32(piece, crc); });
    if (run.crc32) parts_.sums->compare(decoded.file, {run.offset, run.bytes, *run.crc32, run.name}, crc);
  }

  DataPass& pass_;
  const PassParts& parts_;
  const std::stop_token stop_;
  BufferPool pool_{kSlowRead};
  Buffer buffer_{pool_};
  std::span<const StoredCrc> runs_;
  std::size_t run_ = 0;
  std::uint32_t crc_ = 0;
};

/// Divides all work into units, which ranks share by bytes. A unit of a file is one block, or several if the file has
/// more than kMostUnits. A file whose hash covers it completely is one unit, because its hash is computed in order.
DataPass::DataPass(const PassParts& parts, Progress& progress)
    : parts_(parts),
      progress_(progress),
      other_files_([this](std::uint32_t index) { return parts_.open_other(parts_.files[index]); }) {
  for (std::uint32_t i = 0; i < parts.files.size(); ++i) {
    const std::int64_t bytes = parts.files[i].bytes;
    const bool is_hashed_whole = !parts.files[i].sha256.empty();
    const std::int64_t blocks = ceil_div(block_count(bytes), kMostUnits);  // In each unit.
    const std::int64_t step = is_hashed_whole ? std::max<std::int64_t>(bytes, 1) : blocks * kManifestBlock;
    if (bytes == 0 && is_hashed_whole) units_.push_back({Unit::Kind::kBlock, i, 0, 0});
    for (std::int64_t begin = 0; begin < bytes; begin = units_.back().end) {
      units_.push_back({Unit::Kind::kBlock, i, begin, begin + std::min(step, bytes - begin)});
    }
  }
  for (std::uint32_t i = 0; i < parts.decoded.size(); ++i) {
    units_.push_back({Unit::Kind::kDecoded, i, 0, parts.decoded[i].bytes.bytes});
  }
  for (std::uint32_t i = 0; i < parts.pairs.size(); ++i) {
    units_.push_back({Unit::Kind::kPair, i, 0, checked_mul(2, parts.pairs[i].bytes)});
  }
  for (const Unit& unit : units_) total_bytes_ = checked_add(total_bytes_, unit.bytes());
}

void DataPass::run(int rank, int ranks, int threads, const std::stop_token& stop) {
  const auto first_of = [&](int part) {
    const std::int64_t wanted = begin_of_share(total_bytes_, part, ranks);
    std::int64_t before = 0;
    std::size_t i = 0;
    while (i < units_.size() && before < wanted) before += units_[i++].bytes();
    return i;
  };
  const std::size_t begin = first_of(rank), end = rank + 1 == ranks ? units_.size() : first_of(rank + 1);
  for_each_index(end - begin, threads, stop, [&]() -> IndexWorker {
    return [this, worker = std::make_shared<Worker>(*this, stop), begin](std::size_t i) {
      const Unit& unit = units_[begin + i];
      if (is_given_up(unit)) return;
      try {
        worker->read(unit);
      } catch (Error& error) {
        take(unit, error);
      }
    };
  });
}

std::shared_ptr<const RandomReader> DataPass::open(std::uint32_t file) const {
  const std::uint32_t in_catalog = parts_.files[file].file;
  return in_catalog != kNoIndex ? parts_.reader->file(in_catalog) : other_files_.get(file);
}

bool DataPass::is_given_up(const Unit& unit) {
  const std::scoped_lock lock(mutex_);
  return unit.kind == Unit::Kind::kBlock && given_up_.contains(unit.index);
}

void DataPass::take(const Unit& unit, Error& error) {
  if (unit.kind == Unit::Kind::kBlock) {
    error.replace_file(parts_.files[unit.index].path);
    const std::scoped_lock lock(mutex_);
    if (error.kind() == FindingKind::kTruncated && !given_up_.insert(unit.index).second) return;
  }
  if (unit.kind == Unit::Kind::kDecoded)
    error.in_file(parts_.reader->catalog().files[parts_.decoded[unit.index].file].path);
  if (unit.kind == Unit::Kind::kPair) {
    error.of_tensor(parts_.reader->catalog().tensors[parts_.pairs[unit.index].tensor].name);
  }
  take_finding(*parts_.findings, error);
}

}  // namespace shard
