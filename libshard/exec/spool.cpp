#include "libshard/exec/spool.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>

#include "libshard/core/checked.h"
#include "libshard/core/error.h"
#include "libshard/exec/runs.h"
#include "libshard/io/scratch_file.h"

namespace shard {

namespace {

/// A part of a file, under the offsets that it had where it was copied from.
class MovedBytes final : public RandomReader {
 public:
  MovedBytes(std::shared_ptr<const RandomReader> file, std::int64_t moved, const RandomReader& origin)
      : file_(std::move(file)), moved_(moved), bytes_(origin.size()) {
    name_ = origin.name();
  }
  void read_at(std::int64_t offset, std::span<std::byte> out) const override { file_->read_at(offset + moved_, out); }
  std::int64_t size() const override { return bytes_; }

 private:
  std::shared_ptr<const RandomReader> file_;
  std::int64_t moved_, bytes_;
};

void copy_bytes(const RandomReader& from, std::int64_t begin, std::int64_t end, FileWriter& to, std::int64_t offset,
                std::span<std::byte> memory) {
  const std::unique_lock<std::mutex> turn = from.turn();
  for (std::int64_t at = begin; at < end;) {
    const auto bytes = std::min<std::int64_t>(end - at, static_cast<std::int64_t>(memory.size()));
    const std::span<std::byte> block = memory.first(static_cast<std::size_t>(bytes));
    from.read_at(at, block);
    to.write_at(offset + at - begin, block);
    at += bytes;
  }
}

}  // namespace

Spool::Spool(const Catalog& catalog, const Reader& reader, std::span<const Piece> pieces, std::int64_t unit_bytes,
             std::span<std::byte> memory)
    : catalog_(catalog), reader_(reader) {
  find_spans(pieces, unit_bytes);
  std::int64_t total = 0, most = kFreely;
  for (const Span& span : spans_) {
    total = checked_add(total, span.end - span.begin);
    most = std::max(most, checked_mul(kTimes, catalog.files[catalog.storages[span.storage].file].bytes));
  }
  if (total > most) {
    throw Error(ErrorCode::kResource,
                fmt::format("cannot take {} bytes of temporary files for compressed bytes of a file", total))
        .expected(fmt::format("at most {}", most))
        .found(total);
  }
  ScratchFile scratch = make_scratch_file(total);
  const std::shared_ptr<const RandomReader> file = std::move(scratch.reader);
  std::int64_t at = 0;
  for (Span& span : spans_) {
    const std::shared_ptr<const RandomReader> bytes = reader.bytes_of(span.storage);
    copy_bytes(*bytes, span.begin, span.end, *scratch.writer, at, memory);
    span.spooled = std::make_shared<MovedBytes>(file, at - span.begin, *bytes);
    at += span.end - span.begin;
  }
}

void Spool::find_spans(std::span<const Piece> pieces, std::int64_t unit_bytes) {
  for (const Piece& piece : pieces) {
    const Storage& storage = catalog_.storages[piece.storage];
    if (!storage.is_stream) continue;
    const std::int64_t begin = storage.offset + piece.first * unit_bytes;
    const std::int64_t bytes = span_of(piece.sizes.span(), piece.strides.span()) * unit_bytes;
    spans_.push_back({piece.storage, begin, begin + bytes});
  }
  std::ranges::sort(spans_, {}, &Span::storage);
  std::size_t kept = 0;
  for (const Span& span : spans_) {
    if (kept > 0 && spans_[kept - 1].storage == span.storage) {
      Span& joined = spans_[kept - 1];
      joined.begin = std::min(joined.begin, span.begin);
      joined.end = std::max(joined.end, span.end);
    } else {
      spans_[kept++] = span;
    }
  }
  spans_.resize(kept);
}

std::shared_ptr<const RandomReader> Spool::bytes_of(std::uint32_t storage) const {
  const auto at = std::ranges::lower_bound(spans_, storage, {}, &Span::storage);
  return at != spans_.end() && at->storage == storage ? at->spooled : reader_.bytes_of(storage);
}

}  // namespace shard
