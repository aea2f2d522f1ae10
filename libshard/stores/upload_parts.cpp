#include "libshard/stores/upload_parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "libshard/core/digest.h"
#include "libshard/core/error.h"
#include "libshard/core/parallel.h"
#include "libshard/io/source_store.h"
#include "libshard/stores/object_checks.h"

namespace shard {

namespace {

/// Spans of a part that were written: begin to end, no two adjacent.
void add_span(std::map<std::int64_t, std::int64_t>& spans, std::int64_t begin, std::int64_t end) {
  auto next = spans.upper_bound(begin);
  if (next != spans.begin() && std::prev(next)->second >= begin) {
    --next;
    begin = next->first;
  }
  while (next != spans.end() && next->first <= end) {
    end = std::max(end, next->second);
    next = spans.erase(next);
  }
  spans.emplace(begin, end);
}

std::string without_quotes(const std::string& etag) {
  const bool is_quoted = etag.size() >= 2 && etag.front() == '"' && etag.back() == '"';
  return is_quoted ? etag.substr(1, etag.size() - 2) : etag;
}

bool is_same_part(const StoredPart& stored, std::span<const std::byte> bytes, std::uint32_t crc) {
  if (stored.bytes != std::ssize(bytes)) return false;
  if (!stored.crc32c.empty()) return stored.crc32c == crc32c_text(crc);
  const std::string md5 = md5_hex(bytes);
  return !md5.empty() && md5 == without_quotes(stored.etag);
}

Error written_twice(const std::string& url) {
  return Error(ErrorCode::kInternal, "bytes were written to a part that was already complete").in_file(url);
}

Error upload_gone(const std::string& url) {
  return Error(ErrorCode::kResource, "cannot write: the upload is gone")
      .in_file(url)
      .because("another run, or a rule of the bucket, removed it");
}

/// A run whose bytes this process reads.
struct ReadRun {
  std::string source;
  SourceRun run;  ///< Its source is the one above.
};

}  // namespace

/// A part of a file that is not sent yet.
struct UploadParts::Part {
  Part(File& of, std::int64_t at, std::int64_t size) : file(of), index(at), bytes(size) {}
  File& file;
  const std::int64_t index, bytes;
  std::mutex mutex;  ///< Guards the rest.
  bool is_handed_over = false;
  std::vector<std::byte> buffer{};  ///< Empty: nothing was written, or it is in `scratch`.
  std::optional<ScratchFile> scratch{};
  std::map<std::int64_t, std::int64_t> written{};

  bool is_complete() const { return written.size() == 1 && written.begin()->second - written.begin()->first == bytes; }
};

class UploadParts::File final : public FileWriter, public RunCopier {
 public:
  File(UploadParts& owner, UploadTarget to, std::function<void(std::int64_t, std::span<const std::byte>)> sink)
      : target(std::move(to)), on_block(std::move(sink)), parts_(owner) {
    cut(even_layout(target.bytes, target.part_bytes).begins);
  }

  void write_at(std::int64_t offset_bytes, std::span<const std::byte> data) override {
    const ByteRange own = share();
    if (offset_bytes < own.begin || offset_bytes > own.end - std::ssize(data)) {
      throw Error(ErrorCode::kResource, "a write leads past the end of the object").in_file(target.url);
    }
    parts_.write(*this, offset_bytes, data);
  }
  void allocate(std::int64_t) override {}  // The size was given when the object was begun.
  void sync() override {}                  // Parts are durable when the store has answered.
  void close() override {}
  std::vector<ByteRange> copy_runs(std::span<const SourceRun> runs, const std::stop_token& stop) override {
    return parts_.copy_runs(*this, runs, stop);
  }

  /// Cuts the file into parts. The first `sent` of them remain as they are. No other is begun.
  void cut(std::vector<std::int64_t> at, std::int64_t sent = 0) {
    begins_ = std::move(at);
    is_sent.assign(begins_.size() - 1, false);
    std::fill_n(is_sent.begin(), sent, true);
    parts.resize(static_cast<std::size_t>(sent));
    parts.resize(is_sent.size());
  }
  bool is_shared() const { return target.share.end > 0; }
  ByteRange share() const { return is_shared() ? target.share : ByteRange{0, target.bytes}; }
  /// The numbers of this rank's parts.
  std::int64_t first_part() const { return part_at(share().begin); }
  std::int64_t end_of_parts() const { return part_at(share().end - 1) + 1; }
  std::int64_t part_at(std::int64_t offset) const {
    return std::ranges::upper_bound(begins_, offset) - begins_.begin() - 1;
  }
  std::int64_t begin_of(std::int64_t index) const { return begins_[static_cast<std::size_t>(index)]; }
  std::int64_t bytes_of(std::int64_t index) const { return begin_of(index + 1) - begin_of(index); }

  const UploadTarget target;
  const std::function<void(std::int64_t, std::span<const std::byte>)> on_block;
  std::map<std::int64_t, PartPtr> open{};  ///< Guarded by UploadParts::mutex_, as is `is_sent`.
  std::vector<bool> is_sent;               ///< Also true of complete parts whose request has not ended.
  std::vector<StoredPart> parts;           ///< Stored parts. The thread that sends a part writes its entry.
  std::vector<ReadRun> read_runs{};        ///< By offset.

 private:
  std::vector<std::int64_t> begins_{};  ///< See PartLayout::begins.
  UploadParts& parts_;
};

UploadParts::UploadParts(const ObjectStore& store, const UploadLimits& limits) : store_(store), limits_(limits) {}

UploadParts::~UploadParts() {
  {
    const std::scoped_lock lock(mutex_);
    is_over_ = true;
  }
  changed_.notify_all();
  senders_.clear();
}

FileWriter& UploadParts::add(UploadTarget target,
                             std::function<void(std::int64_t, std::span<const std::byte>)> on_block) {
  files_.push_back(std::make_unique<File>(*this, std::move(target), std::move(on_block)));
  return *files_.back();
}

void UploadParts::rethrow_failure() const {
  if (failure_) std::rethrow_exception(failure_);
}

void UploadParts::write(File& file, std::int64_t offset, std::span<const std::byte> data) {
  while (!data.empty()) {
    const std::int64_t index = file.part_at(offset), begin = file.begin_of(index);
    const auto count =
        static_cast<std::size_t>(std::min<std::int64_t>(std::ssize(data), begin + file.bytes_of(index) - offset));
    put_bytes(part_of(file, index), offset - begin, data.first(count));
    data = data.subspan(count);
    offset += static_cast<std::int64_t>(count);
  }
}

UploadParts::PartPtr UploadParts::part_of(File& file, std::int64_t index) {
  const std::scoped_lock lock(mutex_);
  rethrow_failure();
  if (file.is_sent[static_cast<std::size_t>(index)]) throw written_twice(file.target.url);
  PartPtr& part = file.open[index];
  if (part == nullptr) part = std::make_shared<Part>(file, index, file.bytes_of(index));
  return part;
}

void UploadParts::put_bytes(const PartPtr& part, std::int64_t at, std::span<const std::byte> data) {
  const std::scoped_lock lock(part->mutex);
  if (part->is_handed_over) throw written_twice(part->file.target.url);
  if (part->buffer.empty() && !part->scratch) {
    take_memory(part->bytes);
    part->buffer.resize(static_cast<std::size_t>(part->bytes));
    const std::scoped_lock all(mutex_);
    open_.push_back(part);
  }
  if (part->scratch) {
    part->scratch->writer->write_at(at, data);
  } else {
    std::memcpy(part->buffer.data() + at, data.data(), data.size());
  }
  add_span(part->written, at, at + std::ssize(data));
  if (part->is_complete()) hand_over(part);
}

/// Waits until this many bytes are free. \pre the caller holds no lock but that of a part without a buffer
void UploadParts::take_memory(std::int64_t bytes) {
  std::unique_lock lock(mutex_);
  for (;;) {
    rethrow_failure();
    if (used_ == 0 || used_ + bytes <= limits_.memory_bytes) break;
    if (under_way_ > 0) {
      changed_.wait(lock);
    } else if (!move_out(lock)) {  // Another thread is writing to each open part.
      changed_.wait_for(lock, std::chrono::milliseconds(1));
    }
  }
  used_ += bytes;
}

/// Moves the oldest open part that no thread is writing to into a scratch file. \pre `lock` holds mutex_
bool UploadParts::move_out(std::unique_lock<std::mutex>&) {
  for (auto each = open_.begin(); each != open_.end(); ++each) {
    const PartPtr part = *each;
    const std::unique_lock own(part->mutex, std::try_to_lock);
    if (!own.owns_lock()) continue;
    part->scratch = make_scratch_file(part->bytes);
    for (const auto& [begin, end] : part->written) {
      part->scratch->writer->write_at(
          begin,
          std::span(part->buffer).subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin)));
    }
    part->buffer = {};
    used_ -= part->bytes;
    open_.erase(each);
    changed_.notify_all();
    return true;
  }
  return false;
}

/// Queues a complete part. \pre the caller holds its lock
void UploadParts::hand_over(const PartPtr& part) {
  part->is_handed_over = true;
  {
    const std::scoped_lock lock(mutex_);
    part->file.open.erase(part->index);
    part->file.is_sent[static_cast<std::size_t>(part->index)] = true;
    ++unsent_;
    if (part->scratch) {
      set_aside_.push_back(part);
    } else {
      std::erase(open_, part);
      ready_.push_back(part);
      ++under_way_;
    }
    try {
      if (std::cmp_less(senders_.size(), limits_.senders)) add_thread(senders_, [this] { run_sender(); });
    } catch (...) {  // Nothing would send the part, and other writers may wait for its memory.
      failure_ = std::current_exception();
      changed_.notify_all();
      throw;
    }
  }
  changed_.notify_all();
}

/// The next part to send; null at the end. A part from a scratch file comes only when there is memory for it.
UploadParts::PartPtr UploadParts::next_part(std::unique_lock<std::mutex>& lock) {
  for (;;) {
    if (is_over_) return nullptr;
    std::deque<PartPtr>& queue = ready_.empty() ? set_aside_ : ready_;
    if (!queue.empty()) {
      const PartPtr part = queue.front();
      const bool is_in_memory = &queue == &ready_;
      const bool fits = is_in_memory || used_ == 0 || used_ + part->bytes <= limits_.memory_bytes;
      if (fits) {
        queue.pop_front();
        if (!is_in_memory) {
          used_ += part->bytes;
          ++under_way_;
        }
        return part;
      }
      if (under_way_ == 0 && move_out(lock)) continue;
    }
    set_aside_.empty() ? changed_.wait(lock) : static_cast<void>(changed_.wait_for(lock, std::chrono::milliseconds(5)));
  }
}

void UploadParts::run_sender() {
  std::unique_lock lock(mutex_);
  for (;;) {
    PartPtr part;
    std::exception_ptr failure;
    try {
      part = next_part(lock);
      if (part == nullptr) return;
      const bool has_failed = failure_ != nullptr;
      lock.unlock();
      if (!has_failed) send(*part);
    } catch (...) {
      failure = std::current_exception();
    }
    if (!lock.owns_lock()) lock.lock();
    if (failure && !failure_) failure_ = failure;
    if (part != nullptr) {
      used_ -= part->bytes;
      --under_way_;
      --unsent_;
    } else {
      is_over_ = true;  // There is no room to continue.
    }
    changed_.notify_all();
  }
}

/// Passes the blocks of a part on, and sends it unless it is stored already.
void UploadParts::send(Part& part) {
  File& file = part.file;
  if (part.scratch) {
    part.buffer.resize(static_cast<std::size_t>(part.bytes));
    part.scratch->reader->read_at(0, part.buffer);
    part.scratch.reset();
  }
  const std::span<const std::byte> bytes = part.buffer;
  const std::int64_t begin = file.begin_of(part.index);
  for (std::int64_t at = 0; file.on_block && at < part.bytes; at += kOutputBlock) {
    const auto count = static_cast<std::size_t>(std::min(kOutputBlock, part.bytes - at));
    file.on_block((begin + at) / kOutputBlock, bytes.subspan(static_cast<std::size_t>(at), count));
  }
  if (!file.target.completed.empty()) {
    compare_completed(file, begin, bytes);
  } else {
    const int number = static_cast<int>(part.index) + 1;
    const std::uint32_t crc = crc32c(bytes);
    const auto stored = std::ranges::find(file.target.stored, number, &StoredPart::number);
    const bool is_kept = stored != file.target.stored.end() && is_same_part(*stored, bytes, crc);
    StoredPart& result = file.parts[static_cast<std::size_t>(part.index)];
    if (is_kept) {
      result = *stored;
      const std::scoped_lock lock(mutex_);
      ++kept_;
    } else if (auto copied = copy_read_part(part, crc)) {
      result = *std::move(copied);
    } else {
      const ObjectAnswer answer = store_.ask({.act = ObjectAct::kPart,
                                              .url = file.target.url,
                                              .upload = file.target.upload,
                                              .number = number,
                                              .crc32c = crc,
                                              .body = bytes});
      if (answer.outcome != ObjectOutcome::kDone) throw upload_gone(file.target.url);
      result = answer.parts.front();
    }
    if (file.target.has_checksums) result.crc32c = crc32c_text(crc);
  }
  part.buffer = {};
}

std::vector<ByteRange> UploadParts::copy_runs(File& file, std::span<const SourceRun> runs,
                                              const std::stop_token& stop) {
  if (!file.target.completed.empty() || file.is_shared()) return {};  // The bytes are compared; no rank cuts parts.
  const std::optional<std::int64_t> sent = count_sent(file);
  for (const SourceRun& run : runs) {
    if (run.is_read || file.on_block) file.read_runs.push_back({std::string(run.source), run});
  }
  if (!sent || file.on_block) return {};
  PartLayout layout = layout_of_runs(file.target.bytes, file.target.part_bytes, runs, file.begin_of(*sent));
  if (layout.copies.empty()) return {};
  lay_out_again(file, std::move(layout.begins), *sent);
  std::vector<std::uint8_t> is_copied(layout.copies.size());
  for_each_index(is_copied.size(), limits_.senders, [&](std::size_t i) {
    if (stop.stop_requested() || cannot_copy_) return;
    const PartLayout::Copy& copy = layout.copies[i];
    std::optional<StoredPart> stored = copy_part(file, copy.part, runs[copy.run]);
    if (!stored) return;
    is_copied[i] = 1;
    file.parts[static_cast<std::size_t>(copy.part)] = *std::move(stored);
  });
  std::vector<std::int64_t> copied;
  for (std::size_t i = 0; i < is_copied.size(); ++i) {
    if (is_copied[i] != 0) copied.push_back(layout.copies[i].part);
  }
  if (copied.empty() || stop.stop_requested() || !has_copies(file, copied)) return {};
  const std::scoped_lock lock(mutex_);
  std::vector<ByteRange> ranges;
  for (const std::int64_t index : copied) {
    file.is_sent[static_cast<std::size_t>(index)] = true;
    ranges.push_back({file.begin_of(index), file.begin_of(index) + file.bytes_of(index)});
  }
  return ranges;
}

/// Waits for the parts under way. \returns the number of sent parts; nothing if the sent parts are not the first ones
std::optional<std::int64_t> UploadParts::count_sent(const File& file) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return unsent_ == 0 || failure_ != nullptr; });
  rethrow_failure();
  const auto first = std::ranges::find(file.is_sent, false);
  if (std::find(first, file.is_sent.end(), true) != file.is_sent.end()) return std::nullopt;
  return first - file.is_sent.begin();
}

/// Cuts the file at different offsets after the first `sent` parts, and keeps what was written so far.
void UploadParts::lay_out_again(File& file, std::vector<std::int64_t> begins, std::int64_t sent) {
  std::vector<PartPtr> begun;
  {
    const std::scoped_lock lock(mutex_);
    for (const auto& [index, part] : file.open) begun.push_back(part);
    file.open.clear();
  }
  std::vector<std::pair<std::int64_t, Bytes>> written;
  for (const PartPtr& part : begun) take_back(*part, written);
  {
    const std::scoped_lock lock(mutex_);
    file.cut(std::move(begins), sent);
  }
  for (const auto& [offset, bytes] : written) write(file, offset, bytes);
}

/// Removes a part and adds its bytes to `written`.
void UploadParts::take_back(Part& part, std::vector<std::pair<std::int64_t, Bytes>>& written) {
  const std::scoped_lock own(part.mutex);
  for (const auto& [begin, end] : part.written) {
    Bytes& bytes = written.emplace_back(part.file.begin_of(part.index) + begin, Bytes()).second;
    bytes.resize(static_cast<std::size_t>(end - begin));
    if (part.scratch) {
      part.scratch->reader->read_at(begin, bytes);
    } else {
      std::copy_n(part.buffer.begin() + begin, bytes.size(), bytes.begin());
    }
  }
  const std::scoped_lock lock(mutex_);
  if (!part.buffer.empty()) used_ -= part.bytes;
  std::erase_if(open_, [&part](const PartPtr& each) { return each.get() == &part; });
  changed_.notify_all();
}

/// \returns nothing if the store cannot copy the part
std::optional<StoredPart> UploadParts::copy_part(const File& file, std::int64_t index, const SourceRun& run) {
  const std::int64_t begin = run.source_offset + file.begin_of(index) - run.offset;
  const ObjectAnswer answer = store_.ask({.act = ObjectAct::kCopy,
                                          .url = file.target.url,
                                          .upload = file.target.upload,
                                          .number = static_cast<int>(index) + 1,
                                          .from = std::string(run.source),
                                          .begin = begin,
                                          .end = begin + file.bytes_of(index)});
  if (answer.outcome == ObjectOutcome::kRefused) throw file_changed(run.source);
  if (answer.outcome == ObjectOutcome::kAbsent) throw upload_gone(file.target.url);
  const bool is_done = answer.outcome == ObjectOutcome::kDone && !answer.parts.empty();
  // The end of the upload names the checksum of each part.
  if (!is_done || (file.target.has_checksums && answer.parts.front().crc32c.empty())) {
    cannot_copy_ = true;
    return std::nullopt;
  }
  return answer.parts.front();
}

/// Copies a complete part of a run that is read. \returns nothing if it must be sent
std::optional<StoredPart> UploadParts::copy_read_part(const Part& part, std::uint32_t crc) {
  const File& file = part.file;
  const std::int64_t begin = file.begin_of(part.index), end = begin + part.bytes;
  const auto after =
      std::ranges::upper_bound(file.read_runs, begin, {}, [](const ReadRun& each) { return each.run.offset; });
  if (cannot_copy_ || after == file.read_runs.begin()) return std::nullopt;
  SourceRun run = std::prev(after)->run;
  if (run.offset + run.bytes < end) return std::nullopt;
  run.source = std::prev(after)->source;
  std::optional<StoredPart> copied = copy_part(file, part.index, run);
  if (!copied) return std::nullopt;
  const std::array only{part.index};
  if (!has_copied_ && !has_copies(file, only)) {
    cannot_copy_ = true;
    return std::nullopt;
  }
  has_copied_ = true;
  if (!copied->crc32c.empty() && copied->crc32c != crc32c_text(crc)) throw file_changed(run.source);
  return copied;
}

/// Whether the store has parts of the right sizes. A server that does not know the headers of a copy would store all of
/// the source, or nothing.
bool UploadParts::has_copies(const File& file, std::span<const std::int64_t> copied) const {
  const std::vector<StoredPart> there =
      store_.ask({.act = ObjectAct::kParts, .url = file.target.url, .upload = file.target.upload}).parts;
  return std::ranges::all_of(copied, [&](std::int64_t index) {
    const int number = static_cast<int>(index) + 1;
    const auto part = std::ranges::lower_bound(there, number, {}, &StoredPart::number);
    return part != there.end() && part->number == number && part->bytes == file.bytes_of(index);
  });
}

void UploadParts::finish(bool only_with_blocks) {
  std::vector<PartPtr> rest;
  {
    const std::scoped_lock lock(mutex_);
    for (const auto& file : files_) {
      if (only_with_blocks && !file->on_block) continue;
      for (std::int64_t i = file->first_part(); i < file->end_of_parts(); ++i) {
        if (file->is_sent[static_cast<std::size_t>(i)]) continue;
        PartPtr& part = file->open[i];
        if (part == nullptr) part = std::make_shared<Part>(*file, i, file->bytes_of(i));
        rest.push_back(part);
      }
    }
  }
  for (const PartPtr& part : rest) {
    const std::scoped_lock lock(part->mutex);
    if (part->buffer.empty() && !part->scratch) {
      take_memory(part->bytes);
      part->buffer.resize(static_cast<std::size_t>(part->bytes));
    }
    hand_over(part);
  }
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return unsent_ == 0 || failure_ != nullptr; });
  rethrow_failure();
}

std::map<std::string, std::vector<StoredPart>> UploadParts::stored() const {
  std::map<std::string, std::vector<StoredPart>> all;
  for (const auto& file : files_) {
    if (!file->target.completed.empty()) continue;
    all[file->target.url] = {file->parts.begin() + file->first_part(), file->parts.begin() + file->end_of_parts()};
  }
  return all;
}

/// \param begin  the offset of `bytes` in the file
/// \throws Error kResource  the object that an earlier run completed has different bytes there
void UploadParts::compare_completed(const File& file, std::int64_t begin, std::span<const std::byte> bytes) const {
  constexpr std::size_t kPiece = 4 << 20;
  while (!bytes.empty()) {
    const std::span<const std::byte> piece = bytes.first(std::min(kPiece, bytes.size()));
    const std::int64_t end = begin + std::ssize(piece);
    const ObjectAnswer there = store_.ask(
        {.act = ObjectAct::kRead, .url = file.target.url, .etag = file.target.completed, .begin = begin, .end = end});
    if (there.outcome != ObjectOutcome::kDone || !std::ranges::equal(std::as_bytes(std::span(there.text)), piece)) {
      throw Error(ErrorCode::kResource,
                  "cannot resume: the interrupted run has completed an object with different bytes")
          .in_file(file.target.url)
          .because(fmt::format("it differs from this run's output between bytes {} and {}", begin, end))
          .suggest(Remedy::kReplaceDestination);
    }
    bytes = bytes.subspan(piece.size());
    begin = end;
  }
}

}  // namespace shard
