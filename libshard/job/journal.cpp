#include "libshard/job/journal.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "libshard/core/contains.h"
#include "libshard/core/digest.h"
#include "libshard/core/error.h"
#include "libshard/core/parse_number.h"
#include "libshard/manifest/source_identity.h"
#include "libshard/ranks/wire.h"

namespace shard {

namespace {

constexpr std::string_view kMagic = "shardctl.journal/1";
/// Tiles of this size are recorded together, so a kill loses at most this much work.
constexpr std::int64_t kBatchBytes = kLeastJournaledBytes;

/// The frame of a block: its length and CRC-32, then the block.
Bytes framed(const Bytes& block) {
  WireWriter frame;
  frame.number(std::ssize(block));
  frame.number(crc32(block));
  Bytes all = frame.take();
  all.insert(all.end(), block.begin(), block.end());
  return all;
}

/// Removes a framed block from the front. Returns nothing if it is truncated or damaged.
std::optional<std::span<const std::byte>> take_block(std::span<const std::byte>& rest) {
  constexpr std::size_t kFrame = 2 * sizeof(std::int64_t);
  if (rest.size() < kFrame) return std::nullopt;
  WireReader frame(rest.first(kFrame));
  const std::int64_t bytes = frame.number(), crc = frame.number();
  rest = rest.subspan(kFrame);
  if (bytes < 0 || bytes > std::ssize(rest)) return std::nullopt;
  const auto block = rest.first(static_cast<std::size_t>(bytes));
  if (crc32(block) != crc) return std::nullopt;
  rest = rest.subspan(block.size());
  return block;
}

template <class Wire>
void pass(Wire& wire, Passed<Wire, JournalHead>& head) {
  wire.pass_below(head.grid.threads, std::int64_t{1} << 31);
  wire.pass(head.grid.max_memory_bytes, head.job.version, head.job.target, head.job.plan);
  wire.list(head.job.source, [&](auto& file) { wire.pass(file.path, file.bytes, file.modified_ns, file.ends); });
}

template <class Wire>
void pass(Wire& wire, Passed<Wire, TileRecord>& record) {
  wire.pass(record.tile, record.bytes, record.crc, record.cast_overflows);
  wire.list(record.sources, [&](auto& run) { wire.pass(run.storage, run.offset_bytes, run.bytes, run.crc); });
}

Bytes written_head(const JournalHead& head) {
  WireWriter out;
  out.text(kMagic);
  pass(out, head);
  return out.take();
}

Bytes written_records(std::span<const TileRecord> records) {
  WireWriter out;
  for (const TileRecord& record : records) pass(out, record);
  return out.take();
}

std::string text_of(const SourceFile& file) {
  return fmt::format("{}: {} bytes, changed at {} ns, first and last bytes hash to {}", file.path, file.bytes,
                     file.modified_ns, file.ends);
}

Error differs(std::string_view what, std::string_view interrupted, std::string_view now) {
  return Error(ErrorCode::kInvalidArgument, fmt::format("cannot resume: {}", what))
      .expected(interrupted)
      .found(now)
      .hint("start over without resuming; this deletes the interrupted run's output");
}

}  // namespace

/// Tiles of the interrupted run can be used only if source, target and plan are the same.
void expect_same_job(const JobIdentity& interrupted, const JobIdentity& now) {
  if (interrupted.version != now.version) {
    throw differs("a different version started the job", interrupted.version, now.version);
  }
  const auto [was, is] = std::ranges::mismatch(interrupted.source, now.source);
  if (was != interrupted.source.end() || is != now.source.end()) {
    throw differs("the source has changed", was != interrupted.source.end() ? text_of(*was) : "no further file",
                  is != now.source.end() ? text_of(*is) : "no further file");
  }
  if (interrupted.target != now.target) {
    throw differs("the interrupted run was writing a different output", interrupted.target, now.target);
  }
  if (interrupted.plan != now.plan) {
    throw differs("the interrupted run selected, sharded, cast, computed or shared the tensors differently",
                  interrupted.plan, now.plan);
  }
}

std::vector<SourceFile> identify_files(const Reader& reader) {
  const std::vector<File>& files = reader.catalog().files;
  std::vector<SourceFile> identified;
  for (std::uint32_t i = 0; i < files.size(); ++i) {
    const std::string& path = files[i].path;  // In a source that is repaired, a file without bytes may be missing.
    identified.push_back(files[i].bytes == 0 ? SourceFile{path, 0, 0, {}} : identify(*reader.file(i), path));
  }
  return identified;
}

std::optional<JournalHead> read_journal_head(std::span<const std::byte> note) {
  const auto block = take_block(note);
  if (!block) return std::nullopt;
  try {
    WireReader in(*block);
    if (in.text() != kMagic) return std::nullopt;
    JournalHead head;
    pass(in, head);
    return head;
  } catch (const Error&) {
    return std::nullopt;
  }
}

/// Takes the head of one journal per rank. All journals of a rank that can be resumed have the same head.
Bytes heads_of(std::span<const OutputNote> notes) {
  std::set<int> known;
  WireWriter out;
  for (const OutputNote& note : notes) {
    const std::optional<int> rank = rank_of_journal(note.name);
    std::span<const std::byte> rest = note.content;
    if (!rank || !read_journal_head(rest) || !known.insert(*rank).second) continue;
    out.number(*rank);
    take_block(rest);
    out.text(as_text(std::span(note.content).first(note.content.size() - rest.size())));
  }
  return out.take();
}

JournalHeads read_heads(std::span<const Bytes> all) {
  JournalHeads heads;
  for (const Bytes& each : all) {
    WireReader in(each);
    while (!in.at_end()) {
      const auto rank = static_cast<int>(in.number_below(std::int64_t{1} << 31));
      if (auto head = read_journal_head(to_bytes(in.text()))) heads.emplace(rank, *std::move(head));
    }
  }
  return heads;
}

std::string journal_name(std::size_t run, int rank) { return fmt::format("journal.{:06}.{}", run, rank); }

std::optional<int> rank_of_journal(std::string_view name) {
  if (!name.starts_with("journal.")) return std::nullopt;
  return parse_natural<int>(last_part(name));
}

void Journal::end() noexcept try {
  const std::scoped_lock lock(mutex_);
  if (!records_.empty()) flush();
} catch (const Error&) {
}

/// Reads the records of an earlier run, up to the first damaged block. Records that do not fit the plan are ignored,
/// because their tiles are then copied again.
void Journal::read(std::span<const std::byte> note, TileRange tiles, std::span<const Storage> sources) {
  if (!take_block(note)) return;  // Skips the head.
  try {
    while (const auto block = take_block(note)) {
      WireReader in(*block);
      while (!in.at_end()) {
        TileRecord record;
        pass(in, record);
        const bool is_possible = std::ranges::all_of(
            record.sources, [&](const CrcRun& run) { return fits(run, sources) && sources[run.storage].crc32; });
        if (is_possible && record.tile >= tiles.begin && record.tile < tiles.end) {
          before_.insert_or_assign(record.tile, std::move(record));
        }
      }
    }
  } catch (const Error&) {  // The rest has a different version.
  }
}

const TileRecord* Journal::written_before(std::int64_t tile) const {
  const auto found = before_.find(tile);
  return found == before_.end() ? nullptr : &found->second;
}

void Journal::add(TileRecord record) {
  const std::scoped_lock lock(mutex_);
  recorded_bytes_ += record.bytes;
  records_.push_back(std::move(record));
  if (recorded_bytes_ >= kBatchBytes) flush();
}

/// Appends the collected records as one framed block. The head precedes the first one.
void Journal::flush() {
  Bytes text;
  if (!is_begun_) {
    note_ = make_note_();
    is_begun_ = true;
    text = framed(written_head(head_));
  }
  if (note_ != nullptr) {
    const Bytes block = framed(written_records(records_));
    text.insert(text.end(), block.begin(), block.end());
    note_->write_at(end_, text);
    end_ += std::ssize(text);
  }
  records_.clear();
  recorded_bytes_ = 0;
}

}  // namespace shard
