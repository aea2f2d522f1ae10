#include "libshard/verify/data_pass.h"

#include <algorithm>

#include "libshard/core/checked.h"
#include "libshard/core/digest.h"
#include "libshard/core/error.h"
#include "libshard/exec/parallel.h"
#include "libshard/verify/found.h"

namespace shard {

namespace {

constexpr std::int64_t kRead = 256 << 10;  // Stays in a core's cache between the hashes.

}  // namespace

/// Reads units, one at a time.
class DataPass::Worker {
 public:
  Worker(DataPass& pass, const std::stop_token& stop)
      : pass_(pass), parts_(pass.parts_), stop_(stop), buffer_(static_cast<std::size_t>(kRead)) {}

  void read(const Unit& unit) {
    if (unit.kind == Unit::Kind::kPair) return parts_.replicas->compare(unit.index, stop_);
    unit.kind == Unit::Kind::kBlock ? read_blocks(unit) : read_decoded(parts_.decoded[unit.index]);
  }

 private:
  /// Calls `each(offset, piece)` for all of [begin, end), in order.
  template <class Each>
  void for_each_piece(const RandomReader& file, std::int64_t begin, std::int64_t end, const Each& each) {
    for (std::int64_t at = begin; at < end; at += kRead) {
      check_stop(stop_);
      const auto piece = std::span(buffer_).first(static_cast<std::size_t>(std::min(kRead, end - at)));
      file.read_at(at, piece);
      pass_.progress_.bytes_read.fetch_add(static_cast<std::int64_t>(piece.size()), std::memory_order_relaxed);
      each(at, std::span<const std::byte>(piece));
    }
  }

  /// One block, or all of a file whose hash is known as a whole.
  void read_blocks(const Unit& unit) {
    const PassFile& file = parts_.files[unit.index];
    std::optional<Hasher> whole;
    if (!file.sha256.empty()) whole.emplace(HashAlgorithm::kSha256);
    Unit block = unit;
    for (block.begin = unit.begin; block.begin < unit.end; block.begin = block.end) {
      block.end = std::min(unit.end, block.begin + kManifestBlock);
      read_block(block, whole ? &*whole : nullptr);
    }
    if (whole) check_whole(file, whole->finish_hex());
  }

  void read_block(const Unit& unit, Hasher* whole) {
    const PassFile& file = parts_.files[unit.index];
    begin_runs(file, unit);
    std::optional<Hasher> hasher;
    if (file.stated) hasher.emplace(parts_.stated->manifest.algorithm);
    const std::shared_ptr<const RandomReader> opened = pass_.open(unit.index);
    const bool is_summed = run_ < runs_.size() && runs_[run_].offset < unit.end;
    const bool is_needed = hasher || whole != nullptr || is_summed;
    // A hole has no bytes that could be lost, and a sparse file may claim any size.
    if (!is_needed && opened->allocated_bytes(unit.begin, unit.bytes()) == 0) return;
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
                                .hint("fetch the file again, or restore it from a copy"));
  }

  /// Finds the first run that ends behind the unit's begin.
  void begin_runs(const PassFile& file, const Unit& unit) {
    runs_ = file.file == kNoIndex || parts_.sums == nullptr ? std::span<const SummedRun>() : parts_.sums->of(file.file);
    const auto first = std::ranges::upper_bound(runs_, unit.begin, {}, &SummedRun::end);
    run_ = static_cast<std::size_t>(first - runs_.begin());
    crc_ = 0;
  }

  /// Invariant: crc_ is that of the part of run run_ that lies in the unit before `at`.
  void sum(const PassFile& file, const Unit& unit, std::int64_t at, std::span<const std::byte> piece) {
    const std::int64_t end = at + static_cast<std::int64_t>(piece.size());
    while (run_ < runs_.size() && runs_[run_].offset < end) {
      const SummedRun& run = runs_[run_];
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
    const SummedBytes& run = decoded.bytes;
    std::uint32_t crc = 0;
    for_each_piece(*run.decoded(), run.offset, run.offset + run.bytes,
                   [&](std::int64_t, std::span<const std::byte> piece) { crc = crc32(piece, crc); });
    if (run.crc32) parts_.sums->compare(decoded.file, {run.offset, run.bytes, *run.crc32, run.name}, crc);
  }

  DataPass& pass_;
  const PassParts& parts_;
  const std::stop_token stop_;
  std::vector<std::byte> buffer_;
  std::span<const SummedRun> runs_;
  std::size_t run_ = 0;
  std::uint32_t crc_ = 0;
};

DataPass::DataPass(const PassParts& parts, Progress& progress)
    : parts_(parts),
      progress_(progress),
      other_files_([this](std::uint32_t index) { return parts_.open_other(parts_.files[index]); }) {
  for (std::uint32_t i = 0; i < parts.files.size(); ++i) {
    const std::int64_t bytes = parts.files[i].bytes;
    const std::int64_t step = parts.files[i].sha256.empty() ? kManifestBlock : std::max<std::int64_t>(bytes, 1);
    if (bytes == 0 && !parts.files[i].sha256.empty()) units_.push_back({Unit::Kind::kBlock, i, 0, 0});
    for (std::int64_t begin = 0; begin < bytes; begin += step) {
      units_.push_back({Unit::Kind::kBlock, i, begin, std::min(bytes, begin + step)});
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
