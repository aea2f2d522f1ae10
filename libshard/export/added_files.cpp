#include "libshard/export/added_files.h"

#include <algorithm>
#include <utility>

#include "libshard/core/error.h"

namespace shard {

namespace {

constexpr std::int64_t kBlock = 1 << 20, kMostHeld = 256 << 20;

class HeldFile final : public RandomReader {
 public:
  HeldFile(std::vector<std::byte> bytes, const std::string& name) : bytes_(std::move(bytes)) { name_ = name; }
  void read_at(std::int64_t offset_bytes, std::span<std::byte> out) const override {
    const std::int64_t end = offset_bytes + std::ssize(out);
    if (offset_bytes < 0 || end > size()) throw file_too_short(name_, size(), end);
    std::copy_n(bytes_.begin() + offset_bytes, out.size(), out.begin());
  }
  std::int64_t size() const override { return std::ssize(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

class AddingWriter final : public Writer {
 public:
  AddingWriter(std::unique_ptr<Writer> inner, std::vector<AddedFile> files, LocalDisk* reflink_disk)
      : inner_(std::move(inner)), files_(std::move(files)), reflink_disk_(reflink_disk) {}

  void place(Catalog& target) override {
    inner_->place(target);
    first_ = static_cast<std::uint32_t>(target.files.size());
    for (const AddedFile& file : files_) target.files.push_back({file.path, file.bytes});
  }

  bool needs_checksums() const override { return inner_->needs_checksums(); }
  bool is_folder() const override { return inner_->is_folder(); }
  std::unique_ptr<StorageFrames> frames(const Catalog& target) const override { return inner_->frames(target); }

  void begin_file(const Catalog& target, std::uint32_t file, FileWriter& to) override {
    if (file < first_) return inner_->begin_file(target, file, to);
    const AddedFile& added = files_[file - first_];
    const std::shared_ptr<const RandomReader> content = added.open();
    if (content->size() != added.bytes) {
      throw Error(ErrorCode::kCorruption, "the file changed while it was copied")
          .in_file(content->name())
          .expected(added.bytes)
          .found(content->size());
    }
    copy(*content, to);
  }

  void finish_file(const Catalog& target, std::uint32_t file, const Checksums& checksums, FileWriter& to) override {
    if (file < first_) inner_->finish_file(target, file, checksums, to);
  }

 private:
  void copy(const RandomReader& from, FileWriter& to) const {
    const std::int64_t bytes = from.size();
    if (bytes > 0 && reflink_disk_ != nullptr && reflink_disk_->clone_range(from, 0, to, 0, bytes)) return;
    std::vector<std::byte> block;
    for (std::int64_t at = 0; at < bytes; at += kBlock) {
      block.resize(static_cast<std::size_t>(std::min(kBlock, bytes - at)));
      from.read_at(at, block);
      to.write_at(at, block);
    }
  }

  std::unique_ptr<Writer> inner_;
  std::vector<AddedFile> files_;
  LocalDisk* reflink_disk_;
  std::uint32_t first_ = 0;  ///< Number of the first added file in the target.
};

}  // namespace

std::unique_ptr<Writer> with_added_files(std::unique_ptr<Writer> inner, std::vector<AddedFile> files,
                                         LocalDisk* reflink_disk) {
  return std::make_unique<AddingWriter>(std::move(inner), std::move(files), reflink_disk);
}

std::shared_ptr<const RandomReader> held_in_memory(const RandomReader& file) {
  return std::make_shared<HeldFile>(read_whole(file, kMostHeld), file.name());
}

std::shared_ptr<const RandomReader> held_in_memory(std::string_view text, const std::string& name) {
  const auto bytes = std::as_bytes(std::span(text));
  return std::make_shared<HeldFile>(std::vector<std::byte>(bytes.begin(), bytes.end()), name);
}

}  // namespace shard
