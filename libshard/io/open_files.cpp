#include "libshard/io/open_files.h"

namespace shard {

std::shared_ptr<const RandomReader> OpenFiles::get(std::uint32_t index) {
  const std::scoped_lock lock(mutex_);
  if (const auto found = open_.find(index); found != open_.end()) return found->second;
  std::shared_ptr<const RandomReader> file = opener_(index);
  if (order_.size() >= limit_) {
    open_.erase(order_.front());
    order_.pop_front();
  }
  open_.emplace(index, file);
  order_.push_back(index);
  return file;
}

}  // namespace shard
