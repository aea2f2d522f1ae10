#include <cstdlib>

#include "libshard/job/journal.h"
#include "libshard/ranks/wire.h"
#include "tests/fuzz/target.h"

namespace {

constexpr std::int64_t kTiles = 1000, kStorageBytes = 4096;

/// A block as a journal has it, with a right length and CRC-32.
std::string framed(std::string_view block) {
  shard::WireWriter frame;
  frame.number(std::ssize(block));
  frame.number(shard::crc32(std::as_bytes(std::span(block.data(), block.size()))));
  return std::string(shard::as_text(frame.take())) + std::string(block);
}

/// Two storages with a checksum, and one without.
std::vector<shard::Storage> sources() {
  std::vector<shard::Storage> all(3);
  for (shard::Storage& each : all) each.bytes = kStorageBytes;
  all[0].crc32 = all[1].crc32 = 7;
  return all;
}

void check(const shard::TileRecord& record, const std::vector<shard::Storage>& all) {
  if (record.tile < 10 || record.tile >= kTiles) std::abort();
  for (const shard::CrcRun& run : record.sources) {
    if (run.storage >= all.size() || !all[run.storage].crc32) std::abort();
    if (run.offset_bytes < 0 || run.bytes < 0 || run.offset_bytes > kStorageBytes - run.bytes) std::abort();
  }
}

}  // namespace

// A journal: 0 unchanged, 1 a head and a batch of records, each framed with a right length and CRC-32. A note that is
// not a journal is no error; a record that fits no tile and no storage is skipped.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace shard;
  if (size == 0) return 0;
  std::string_view input = fuzz::as_text(data + 1, size - 1);
  std::string note(input);
  if (data[0] % 2 == 1) {
    note = framed(fuzz::take_part(input));
    note += framed(input);
  }
  const auto bytes = std::as_bytes(std::span(note.data(), note.size()));
  const auto head = read_journal_head(bytes);
  if (head && head->job.source.size() > note.size()) std::abort();
  Journal journal(head.value_or(JournalHead{}), [] { return nullptr; });
  const std::vector<Storage> all = sources();
  journal.read(bytes, {10, kTiles}, all);
  for (std::int64_t tile = 0; tile < kTiles; ++tile) {
    if (const TileRecord* record = journal.written_before(tile)) check(*record, all);
  }
  return 0;
}
