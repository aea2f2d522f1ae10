#include "libshard/exec/framing.h"

#include <algorithm>
#include <tuple>

#include "libshard/core/bytes.h"
#include "libshard/core/digest.h"

namespace shard {

namespace {

constexpr std::size_t kMostCollected = 1 << 20;

}  // namespace

Framing::Framing(const Catalog& target, const Writer& writer, std::vector<std::uint8_t> is_own)
    : target_(target), writer_(writer), is_own_(std::move(is_own)) {
  // A null result means that this format's storages have no frames.
  if (frames() == nullptr) {
    is_own_.assign(target.storages.size(), 0);
    return;
  }
  has_before_.resize(target.storages.size());
  has_after_.resize(target.storages.size());
  position_.resize(target.storages.size());
  for (std::uint32_t i = 0; i < target.storages.size(); ++i) {
    if (target.storages[i].offset >= 0) in_order_.push_back(i);
  }
  std::ranges::sort(in_order_, {}, [&](std::uint32_t i) {
    const Storage& storage = target.storages[i];
    // Empty storages precede others at the same offset.
    return std::tuple(storage.file, storage.offset, storage.bytes);
  });
  for (std::uint32_t i = 0; i < in_order_.size(); ++i) position_[in_order_[i]] = i;
}

bool Framing::is_first(std::uint32_t storage) const {
  if (!owns(storage)) return false;
  const std::uint32_t position = position_[storage];
  if (position == 0) return true;
  const std::uint32_t before = in_order_[position - 1];
  return target_.storages[before].file != target_.storages[storage].file || !owns(before);
}

/// Appends the frames between a storage and the next one that is written, for as long as the bytes are adjacent.
void Framing::append_gap(std::uint32_t file, std::size_t position, std::int64_t at, StorageFrames& frames,
                         std::string& out) {
  // Continues while the frames are adjacent, so that one write can include them. An empty storage ends where it begins,
  // so its frames on both sides belong to the gap.
  for (; position < in_order_.size() && out.size() < kMostCollected; ++position) {
    const std::uint32_t next = in_order_[position];
    const Storage& place = target_.storages[next];
    if (place.file != file || !owns(next) || (place.bytes > 0 && joins(next))) return;
    const std::size_t known = out.size();
    frames.append_before(next, out);
    at += static_cast<std::int64_t>(out.size() - known);
    // The next frame is not adjacent. It is removed again. write_rest writes it.
    if (at != place.offset) return out.resize(known);
    has_before_[next] = 1;
    if (place.bytes > 0) return;
    const std::size_t end = out.size();
    frames.append_after(next, crc32({}), out);
    at += static_cast<std::int64_t>(out.size() - end);
    has_after_[next] = 1;
  }
}

void Framing::append_before(std::uint32_t storage, StorageFrames& frames, std::string& out) {
  frames.append_before(storage, out);
  has_before_[storage] = 1;
}

void Framing::append_after(std::uint32_t storage, std::uint32_t crc32, StorageFrames& frames, std::string& out) {
  const Storage& place = target_.storages[storage];
  const std::size_t known = out.size();
  frames.append_after(storage, crc32, out);
  has_after_[storage] = 1;
  const std::int64_t end = place.offset + place.bytes + static_cast<std::int64_t>(out.size() - known);
  append_gap(place.file, position_[storage] + std::size_t{1}, end, frames, out);
}

/// Writes the frames that no worker could write together with data.
void Framing::write_rest(std::uint32_t file, const Checksums& checksums, FileWriter& to) const {
  const std::unique_ptr<StorageFrames> made = frames();
  if (made == nullptr) return;
  JoinedWrites writes(to);
  std::string text;
  // Storages are sorted by file, so those of this file are a contiguous range.
  const auto of_file = std::ranges::equal_range(
      in_order_, file, {}, [this](std::uint32_t storage) { return target_.storages[storage].file; });
  for (const std::uint32_t i : of_file) {
    const Storage& storage = target_.storages[i];
    if (!owns(i)) continue;
    if (has_before_[i] == 0) {
      text.clear();
      made->append_before(i, text);
      writes.add(storage.offset - static_cast<std::int64_t>(text.size()), text);
    }
    if (has_after_[i] == 0) {
      text.clear();
      made->append_after(i, checksums.crc32_of(i), text);
      writes.add(storage.offset + storage.bytes, text);
    }
  }
  writes.flush();
}

FramedWrites::FramedWrites(Framing& framing, std::span<FileWriter* const> files)
    : framing_(framing), files_(files), frames_(framing.frames()) {}

int FramedWrites::add(std::uint32_t storage, std::span<const std::byte> bytes, std::uint32_t crc32) {
  const Storage& place = framing_.target().storages[storage];
  // Storages whose frames are adjacent in the file form one run, which is written with one call.
  int writes = collected_ > kMostCollected ? flush() : 0;
  text_.clear();
  framing_.append_before(storage, *frames_, text_);
  const std::int64_t begin = place.offset - static_cast<std::int64_t>(text_.size());
  Run& run = runs_[place.file];
  if (begin != run.begin + static_cast<std::int64_t>(run.bytes.size())) {
    writes += write(place.file, run) ? 1 : 0;
    run.begin = begin;
  }
  const std::size_t known = run.bytes.size();
  run.bytes += text_;
  run.bytes += as_text(bytes);
  framing_.append_after(storage, crc32, *frames_, run.bytes);
  collected_ += run.bytes.size() - known;
  return writes;
}

/// The frame before any other storage is written together with the storage before it.
int FramedWrites::begin(std::uint32_t storage) {
  if (!framing_.is_first(storage)) return 0;
  const Storage& place = framing_.target().storages[storage];
  text_.clear();
  framing_.append_before(storage, *frames_, text_);
  files_[place.file]->write_at(place.offset - std::ssize(text_), std::as_bytes(std::span(text_)));
  return 1;
}

int FramedWrites::end(std::uint32_t storage, std::uint32_t crc32) {
  if (!framing_.owns(storage)) return 0;
  const Storage& place = framing_.target().storages[storage];
  text_.clear();
  framing_.append_after(storage, crc32, *frames_, text_);
  files_[place.file]->write_at(place.offset + place.bytes, std::as_bytes(std::span(text_)));
  return 1;
}

int FramedWrites::flush() {
  int writes = 0;
  for (auto& [file, run] : runs_) writes += write(file, run) ? 1 : 0;
  collected_ = 0;
  return writes;
}

bool FramedWrites::write(std::uint32_t file, Run& run) {
  if (run.bytes.empty()) return false;
  files_[file]->write_at(run.begin, std::as_bytes(std::span(run.bytes)));
  run.begin += static_cast<std::int64_t>(run.bytes.size());
  run.bytes.clear();
  return true;
}

}  // namespace shard
