#include "shardtorch/c10d/attendance.h"

#include <algorithm>
#include <exception>
#include <functional>
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
constexpr const char* kProgress = "progress";

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kPause{10};

/// "rank 1" or "ranks 1, 3": the ranks below `size` for which `is_here` does not hold.
std::string ranks_without(int size, const std::function<bool(int)>& is_here) {
  constexpr std::size_t kMost = 8;
  std::vector<std::int64_t> first;
  std::int64_t count = 0;
  for (int rank = 0; rank < size; ++rank) {
    if (is_here(rank)) continue;
    ++count;
    if (first.size() < kMost) first.push_back(rank);
  }
  if (count == 0) return {};
  return (count == 1 ? "rank " : "ranks ") + first_numbers(first, count);
}

/// The result of `ask`, or nothing if it throws or takes longer than `limit`. A store whose process is stopped never
/// answers, so a separate thread asks it.
std::string answer_within(std::chrono::milliseconds limit, std::function<std::string()> ask) {
  std::packaged_task<std::string()> task(std::move(ask));
  std::future<std::string> answer = task.get_future();
  std::thread(std::move(task)).detach();
  if (answer.wait_for(limit) != std::future_status::ready) return {};
  try {
    return answer.get();
  } catch (const std::exception&) {
    return {};  // The store died.
  }
}

/// The ranks that do not report `operation` or a later one within `patience`.
std::string absent_from(c10d::Store& store, std::int64_t operation, int size, std::chrono::milliseconds patience) {
  std::vector<bool> is_here(static_cast<std::size_t>(size));
  const auto asks = [&](int rank) {
    const std::string key = attendance_key(kProgress, rank);
    if (!store.check({key})) return false;
    const std::vector<std::uint8_t> number = store.get(key);
    return std::stoll(std::string(number.begin(), number.end())) >= operation;
  };
  for (const auto end = Clock::now() + patience;; std::this_thread::sleep_for(kPause)) {
    for (int rank = 0; rank < size; ++rank) {
      const auto r = static_cast<std::size_t>(rank);
      if (!is_here[r]) is_here[r] = asks(rank);
    }
    if (Clock::now() >= end || std::ranges::find(is_here, false) == is_here.end()) break;
  }
  return ranks_without(size, [&](int rank) { return is_here[static_cast<std::size_t>(rank)]; });
}

/// The steps of missing_after_failure. The first caller waits and writes the result for all others.
std::string find_missing(c10d::Store& store, int rank, int size, std::chrono::milliseconds patience) {
  store.set(attendance_key(kFailed, rank), std::string("y"));
  if (store.add(kCount, 1) > 1) {
    store.wait({kMissing}, 2 * patience);
    const std::vector<std::uint8_t> found = store.get(kMissing);
    return {found.begin() + 1, found.end()};
  }
  const auto end = Clock::now() + patience;
  while (store.add(kCount, 0) < size && Clock::now() < end) std::this_thread::sleep_for(kPause);
  std::string missing = absent_ranks(store, kFailed, size);
  store.set(kMissing, "=" + missing);
  return missing;
}

}  // namespace

std::string attendance_key(const std::string& roll, int rank) { return roll + "/" + std::to_string(rank); }

std::string absent_ranks(c10d::Store& store, const std::string& roll, int size) {
  return ranks_without(size, [&](int rank) { return store.check({attendance_key(roll, rank)}); });
}

std::string missing_after_failure(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                  std::chrono::milliseconds patience) {
  return answer_within(4 * patience, [=] { return find_missing(*store, rank, size, patience); });
}

Attendance::Attendance(c10::intrusive_ptr<c10d::Store> store, int rank, int size)
    : store_(std::move(store)), rank_(rank), size_(size) {}

void Attendance::report() noexcept {
  if (std::exchange(reported_, operation_) == operation_) return;
  try {
    store_->set(attendance_key(kProgress, rank_), std::to_string(operation_));
  } catch (const std::exception&) {
    return;  // The store died. The operation has its own error.
  }
}

std::string Attendance::absent(std::chrono::milliseconds patience) {
  report();
  return answer_within(4 * patience, [store = store_, operation = operation_, size = size_, patience] {
    return absent_from(*store, operation, size, patience);
  });
}

}  // namespace shard
