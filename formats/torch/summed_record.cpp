#include "formats/torch/summed_record.h"

#include <fmt/format.h>

#include <mutex>
#include <utility>
#include <vector>

#include "libshard/core/crc_runs.h"
#include "libshard/core/digest.h"
#include "libshard/core/error.h"

namespace shard::torch_save {

namespace {

constexpr std::size_t kMostSummedRuns = 1 << 16;

class SummedRecord final : public RandomReader {
 public:
  SummedRecord(std::shared_ptr<const RandomReader> file, std::int64_t offset, std::int64_t bytes, std::uint32_t crc32,
               std::string record)
      : file_(std::move(file)), offset_(offset), bytes_(bytes), crc32_(crc32), record_(std::move(record)) {
    name_ = file_->name();
  }
  std::int64_t size() const override { return bytes_; }
  std::unique_lock<std::mutex> turn() const override { return file_->turn(); }
  std::int64_t held_bytes() const override { return file_->held_bytes(); }

  void read_at(std::int64_t offset, std::span<std::byte> out) const override {
    file_->read_at(offset_ + offset, out);
    for (const auto& [begin, end] : unsummed(offset, offset + std::ssize(out))) {
      const auto part = out.subspan(static_cast<std::size_t>(begin - offset), static_cast<std::size_t>(end - begin));
      add(begin, end - begin, crc32(part));
    }
  }

 private:
  std::vector<CrcRuns::Range> unsummed(std::int64_t begin, std::int64_t end) const {
    const std::scoped_lock lock(mutex_);
    return is_over_ ? std::vector<CrcRuns::Range>() : runs_.missing(begin, end);
  }

  void add(std::int64_t offset, std::int64_t bytes, std::uint32_t crc) const {
    const std::scoped_lock lock(mutex_);
    if (is_over_ || !runs_.add(offset, bytes, crc)) return;
    const bool is_whole = runs_.covers(bytes_);
    is_over_ = is_whole || runs_.runs().size() > kMostSummedRuns;
    if (!is_whole) return;
    const std::uint32_t found = runs_.runs().begin()->second.crc;
    if (found == crc32_) return;
    throw Error(ErrorCode::kCorruption, fmt::format("record '{}' does not match its checksum", record_))
        .in_file(name_)
        .because("bytes of the file changed after it was written")
        .of_kind(FindingKind::kCrcMismatch)
        .expected(fmt::format("CRC-32 {:08x}", crc32_))
        .found(fmt::format("{:08x}", found))
        .hint("fetch the file again, or restore it from a copy");
  }

  const std::shared_ptr<const RandomReader> file_;
  const std::int64_t offset_, bytes_;
  const std::uint32_t crc32_;
  const std::string record_;
  mutable std::mutex mutex_;
  mutable CrcRuns runs_;
  mutable bool is_over_ = false;  ///< All is summed, or it would take too much.
};

}  // namespace

std::shared_ptr<const RandomReader> summed_record(std::shared_ptr<const RandomReader> file, std::int64_t offset,
                                                  std::int64_t bytes, std::uint32_t crc32, std::string record) {
  return std::make_shared<SummedRecord>(std::move(file), offset, bytes, crc32, std::move(record));
}

}  // namespace shard::torch_save
