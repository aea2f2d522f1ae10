#include "python/native/checkpoint.h"

#include <algorithm>
#include <iterator>

#include "libshard/io/local_disk.h"

namespace shard::python {

Checkpoint::Checkpoint(const SourceRequest& request, const ReadLimits& limits, const std::stop_token& stop)
    : watched_(posix_disk()),
      store_(watched_, stop),
      limits_(limits),
      source_(open_source({store_, maps_, limits.threads}, request)),
      is_located_(source_.catalog().tensors.size()) {}

const Catalog& Checkpoint::with_objects() {
  const std::scoped_lock lock(mutex_);
  if (!has_objects_) source_.reader->load_objects();
  has_objects_ = true;
  return source_.catalog();
}

void Checkpoint::locate(std::span<const std::uint32_t> tensors) {
  const auto is_missing = [this](std::uint32_t tensor) { return !is_located_.at(tensor); };
  {
    const std::shared_lock lock(mutex_);
    if (std::ranges::none_of(tensors, is_missing)) return;
  }
  const std::scoped_lock lock(mutex_);
  std::vector<std::uint32_t> missing;
  std::ranges::copy_if(tensors, std::back_inserter(missing), is_missing);
  std::ranges::sort(missing);
  missing.erase(std::ranges::unique(missing).begin(), missing.end());
  source_.reader->locate(missing);
  for (const std::uint32_t tensor : missing) is_located_[tensor] = true;
}

std::int64_t Checkpoint::read(std::span<const WantedBox> wanted, const std::stop_token& stop) {
  std::vector<std::uint32_t> tensors;
  for (const WantedBox& each : wanted) tensors.push_back(each.tensor);
  locate(tensors);
  const std::shared_lock lock(mutex_);
  const ReadBoxesOptions options{
      .threads = limits_.threads, .max_memory_bytes = limits_.max_memory_bytes, .stop = stop};
  const std::int64_t bytes = read_boxes(*source_.reader, wanted, options);
  watched_.expect_unchanged();
  return bytes;
}

}  // namespace shard::python
