#include "python/native/checkpoint.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <optional>

#include "libshard/core/error.h"
#include "libshard/core/sort_unique.h"
#include "libshard/io/local_disk.h"
#include "libshard/io/paths.h"
#include "libshard/io/url_path.h"

namespace shard::python {
namespace {

bool has_urls(const SourceRequest& request) {
  return std::ranges::any_of(request.paths, is_url) || is_url(request.numbers.hf_ref) || is_url(request.map) ||
         is_url(request.layout) || std::ranges::any_of(request.adapters, is_url, &AdapterRequest::path);
}

/// The limits of reads, without the memory that is used for URLs.
ReadLimits without_urls(ReadLimits limits, const SourceRequest& request, const StoreRequest& urls) {
  if (!has_urls(request)) return limits;
  limits.max_memory_bytes -= url_memory_bytes(limits.max_memory_bytes, urls.connections, limits.threads);
  return limits;
}

UrlStore::Options url_options(StoreRequest urls, const ReadLimits& limits, const std::atomic<int>& stopped) {
  urls.readers = limits.threads;
  urls.memory_bytes = url_memory_bytes(limits.max_memory_bytes, urls.connections, limits.threads);
  return {.request = [urls] { return urls; }, .is_stopped = [&stopped] { return stopped > 0; }};
}

/// The path of a file that an Error names: `file` is relative to one of the source's paths, or is one's last component.
std::string path_of(const std::string& file, const SourceStore& disk, const std::vector<std::string>& paths) {
  if (file.empty() || file.front() == '/' || is_url(file)) return file;
  for (const std::string& path : paths) {
    if (file == path || file == base_name(path)) return path;
    if (file.starts_with(path)) return file;
  }
  for (const std::string& path : paths) {
    const std::string below = join_path(path, file);
    if (is_url(path) || disk.exists(below)) return below;
  }
  return file;
}

}  // namespace

/// Counts a stop request until the operation ends.
class Checkpoint::Operation {
 public:
  Operation(std::atomic<int>& stopped, const std::stop_token& stop)
      : stopped_(stopped), count_(std::in_place, stop, [this] {
          ++stopped_;
          is_counted_ = true;
        }) {}
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;
  ~Operation() {
    count_.reset();
    if (is_counted_) --stopped_;
  }

 private:
  std::atomic<int>& stopped_;
  bool is_counted_ = false;
  std::optional<std::stop_callback<std::function<void()>>> count_;
};

template <class Work>
auto Checkpoint::named(const Work& work) const {
  try {
    return work();
  } catch (Error& error) {
    if (const std::string path = path_of(error.file(), *disk_, paths_); path != error.file()) error.replace_file(path);
    throw;
  }
}

Checkpoint::Checkpoint(const SourceRequest& request, const StoreRequest& urls, const ReadLimits& limits,
                       const std::stop_token& stop)
    : paths_(request.paths),
      reads_urls_(has_urls(request)),
      disk_(posix_disk_from_here()),
      urls_(*disk_, url_options(urls, limits, stopped_)),
      watched_(urls_),
      store_(watched_, [this] { return stopped_ > 0; }),
      limits_(without_urls(limits, request, urls)),
      source_(named([&] {
        const Operation operation(stopped_, stop);
        return open_source({store_, maps_, limits_.threads}, request);
      })),
      is_located_(source_.catalog().tensors.size()) {}

const Catalog& Checkpoint::with_objects(const std::stop_token& stop) {
  const Operation operation(stopped_, stop);
  const std::scoped_lock lock(mutex_);
  if (!has_objects_) named([&] { source_.reader->load_objects(); });
  has_objects_ = true;
  return source_.catalog();
}

void Checkpoint::locate(std::span<const std::uint32_t> tensors, const std::stop_token& stop) {
  const Operation operation(stopped_, stop);
  const auto is_missing = [this](std::uint32_t tensor) { return !is_located_.at(tensor); };
  {
    const std::shared_lock lock(mutex_);
    if (std::ranges::none_of(tensors, is_missing)) return;
  }
  const std::scoped_lock lock(mutex_);
  std::vector<std::uint32_t> missing;
  std::ranges::copy_if(tensors, std::back_inserter(missing), is_missing);
  sort_unique(missing);
  named([&] { source_.reader->locate(missing); });
  for (const std::uint32_t tensor : missing) is_located_[tensor] = true;
}

std::int64_t Checkpoint::read(std::span<const WantedBox> wanted, const std::stop_token& stop) {
  const Operation operation(stopped_, stop);
  std::vector<std::uint32_t> tensors;
  for (const WantedBox& each : wanted) tensors.push_back(each.tensor);
  locate(tensors, stop);
  const std::shared_lock lock(mutex_);
  const ReadBoxesOptions options{
      .threads = limits_.threads, .max_memory_bytes = limits_.max_memory_bytes, .stop = stop};
  return named([&] {
    const std::int64_t bytes = read_boxes(*source_.reader, wanted, options);
    watched_.expect_unchanged();
    return bytes;
  });
}

}  // namespace shard::python
