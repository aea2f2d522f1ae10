#include "libshard/exec/framing.h"

#include <algorithm>
#include <string_view>

#include "libshard/io/joined_writes.h"

namespace shard {

namespace {

constexpr std::size_t kMostCollected = 1 << 20;

std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

Framing::Framing(const Catalog& target, const Writer& writer, std::vector<bool> is_own)
    : target_(target), writer_(writer), is_own_(std::move(is_own)) {
  if (frames() == nullptr) {
    is_own_.assign(target.files.size(), false);
    return;
  }
  is_written_.resize(target.storages.size());
  begins_.resize(target.files.size() + 1);
  for (const Storage& storage : target.storages) ++begins_[storage.file + 1];
  for (std::size_t i = 1; i < begins_.size(); ++i) begins_[i] += begins_[i - 1];
  by_file_.resize(target.storages.size());
  std::vector<std::size_t> next(begins_.begin(), begins_.end() - 1);
  for (std::uint32_t i = 0; i < target.storages.size(); ++i) by_file_[next[target.storages[i].file]++] = i;
}

void Framing::write_rest(std::uint32_t file, const Checksums& checksums, FileWriter& to) const {
  if (!is_own_[file]) return;
  std::vector<std::uint32_t> missing;
  for (std::size_t i = begins_[file]; i < begins_[file + 1]; ++i) {
    const std::uint32_t storage = by_file_[i];
    if (is_written_[storage] == 0 && target_.storages[storage].offset >= 0) missing.push_back(storage);
  }
  std::ranges::sort(missing, {}, [this](std::uint32_t storage) {
    return std::pair(target_.storages[storage].offset, target_.storages[storage].bytes);  // Empty ones go first.
  });
  const std::unique_ptr<StorageFrames> made = frames();
  JoinedWrites writes(to);
  std::string text;
  for (const std::uint32_t i : missing) {
    const Storage& storage = target_.storages[i];
    text.clear();
    made->append_before(i, text);
    writes.add(storage.offset - static_cast<std::int64_t>(text.size()), text);
    text.clear();
    made->append_after(i, checksums.crc32_of(i), text);
    writes.add(storage.offset + storage.bytes, text);
  }
  writes.flush();
}

FramedWrites::FramedWrites(Framing& framing, std::span<FileWriter* const> files)
    : framing_(framing), files_(files), frames_(framing.frames()) {}

int FramedWrites::add(std::uint32_t storage, std::span<const std::byte> bytes, std::uint32_t crc32) {
  const Storage& place = framing_.target().storages[storage];
  int writes = collected_ > kMostCollected ? flush() : 0;
  before_.clear();
  frames_->append_before(storage, before_);
  const std::int64_t begin = place.offset - static_cast<std::int64_t>(before_.size());
  Run& run = runs_[place.file];
  if (begin != run.begin + static_cast<std::int64_t>(run.bytes.size())) {
    writes += write(place.file, run) ? 1 : 0;
    run.begin = begin;
  }
  const std::size_t known = run.bytes.size();
  run.bytes += before_;
  run.bytes += as_text(bytes);
  frames_->append_after(storage, crc32, run.bytes);
  collected_ += run.bytes.size() - known;
  framing_.mark_written(storage);
  return writes;
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
