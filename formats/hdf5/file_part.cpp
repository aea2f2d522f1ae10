#include "formats/hdf5/file_part.h"

#include <utility>
#include <vector>

#include "formats/parts/decoded_view/decoded_view.h"

namespace shard::hdf5 {

namespace {

class FilePart final : public RandomReader {
 public:
  FilePart(std::shared_ptr<const RandomReader> file, std::int64_t offset, std::int64_t bytes)
      : file_(std::move(file)), offset_(offset), bytes_(bytes) {
    name_ = file_->name();
  }

  void read_at(std::int64_t offset, std::span<std::byte> out) const override {
    decoded_view::check_within(offset, out.size(), bytes_, name_);
    file_->read_at(offset_ + offset, out);
  }
  void read_many(std::span<const RangedRead> ranges) const override {
    std::vector<RangedRead> moved(ranges.begin(), ranges.end());
    for (RangedRead& range : moved) {
      decoded_view::check_within(range.offset_bytes, range.out.size(), bytes_, name_);
      range.offset_bytes += offset_;
    }
    file_->read_many(moved);
  }
  std::int64_t size() const override { return bytes_; }
  FileIdentity identity() const override { return file_->identity(); }
  std::int64_t modified_ns() const override { return file_->modified_ns(); }
  std::int64_t allocated_bytes(std::int64_t offset, std::int64_t count) const override {
    return file_->allocated_bytes(offset_ + offset, count);
  }

 private:
  std::shared_ptr<const RandomReader> file_;
  std::int64_t offset_, bytes_;
};

}  // namespace

std::unique_ptr<RandomReader> file_part(std::shared_ptr<const RandomReader> file, std::int64_t offset,
                                        std::int64_t bytes) {
  return std::make_unique<FilePart>(std::move(file), offset, bytes);
}

}  // namespace shard::hdf5
