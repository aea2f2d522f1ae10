#include "shardtorch/c10d/attendance.h"

#include <cstdint>
#include <exception>
#include <future>
#include <thread>
#include <utility>
#include <vector>

#include "libshard/core/short_text.h"

namespace shard {

namespace {

constexpr const char* kFailed = "failed";
constexpr const char* kMissing = "failed/missing";
constexpr const char* kCount = "failed/count";

/// The steps of missing_after_failure. The first caller waits and writes the result for all others.
std::string find_missing(c10d::Store& store, int rank, int size, std::chrono::milliseconds patience) {
  store.set(attendance_key(kFailed, rank), std::string("y"));
  if (store.add(kCount, 1) > 1) {
    store.wait({kMissing}, 2 * patience);
    const std::vector<std::uint8_t> found = store.get(kMissing);
    return {found.begin() + 1, found.end()};
  }
  const auto end = std::chrono::steady_clock::now() + patience;
  while (store.add(kCount, 0) < size && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  std::string missing = absent_ranks(store, kFailed, size);
  store.set(kMissing, "=" + missing);
  return missing;
}

}  // namespace

std::string attendance_key(const std::string& roll, int rank) { return roll + "/" + std::to_string(rank); }

std::string absent_ranks(c10d::Store& store, const std::string& roll, int size) {
  constexpr std::size_t kMost = 8;
  std::vector<std::int64_t> first;
  std::int64_t count = 0;
  for (int rank = 0; rank < size; ++rank) {
    if (store.check({attendance_key(roll, rank)})) continue;
    ++count;
    if (first.size() < kMost) first.push_back(rank);
  }
  if (count == 0) return {};
  return (count == 1 ? "rank " : "ranks ") + first_numbers(first, count);
}

std::string missing_after_failure(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                  std::chrono::milliseconds patience) {
  // A store whose process is stopped never answers, so a separate thread asks it.
  std::packaged_task<std::string()> task([=] { return find_missing(*store, rank, size, patience); });
  std::future<std::string> answer = task.get_future();
  std::thread(std::move(task)).detach();
  if (answer.wait_for(4 * patience) != std::future_status::ready) return {};
  try {
    return answer.get();
  } catch (const std::exception&) {
    return {};  // The store died.
  }
}

}  // namespace shard
