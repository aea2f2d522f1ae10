#include "libshard/ranks/thread_group.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>

#include "libshard/core/error.h"

namespace shard {

namespace {

using Clock = std::chrono::steady_clock;

/// The shared state of the threads in one group.
struct Meeting {
  explicit Meeting(int ranks)
      : size(static_cast<std::size_t>(ranks)), arrived(size), to(size), broadcast_from(size), gather_from(size) {}

  const std::size_t size;
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<char> arrived;  ///< By rank, for the current operation.
  std::size_t waiting = 0;
  std::uint64_t number = 0;  ///< Counts operations that were completed.
  std::string broken;        ///< The reason, once the group is broken.

  // The pieces that ranks show one another during an operation.
  std::vector<std::span<const std::span<const std::byte>>> to;
  std::vector<std::span<std::byte>> broadcast_from;
  std::vector<std::span<const std::byte>> gather_from;

  void break_up(const std::string& why) {
    const std::scoped_lock lock(mutex);
    if (broken.empty()) broken = why;
    changed.notify_all();
  }
};

[[noreturn]] void throw_broken(const std::string& why) {
  throw Error(ErrorCode::kPeer, why).because("all ranks of a job end together");
}

void copy_piece(std::span<const std::byte> from, std::span<std::byte> to, std::size_t sender, std::size_t receiver) {
  if (from.size() != to.size()) {
    throw Error(ErrorCode::kPeer,
                fmt::format("rank {} sends {} bytes, rank {} expects {}", sender, from.size(), receiver, to.size()));
  }
  if (!from.empty()) std::memcpy(to.data(), from.data(), from.size());
}

class ThreadGroup final : public Group {
 public:
  ThreadGroup(std::shared_ptr<Meeting> meeting, std::size_t rank) : meeting_(std::move(meeting)), rank_(rank) {}
  ~ThreadGroup() override { meeting_->break_up(fmt::format("rank {} is gone", rank_)); }
  ThreadGroup(const ThreadGroup&) = delete;
  ThreadGroup& operator=(const ThreadGroup&) = delete;

  int rank() const override { return static_cast<int>(rank_); }
  int size() const override { return static_cast<int>(meeting_->size); }
  std::string_view backend() const override { return "threads"; }
  void barrier() override { meet(); }

  void broadcast(std::span<std::byte> data, int root) override {
    const auto from = static_cast<std::size_t>(root);
    if (rank_ == from) meeting_->broadcast_from[from] = data;
    meet();
    if (rank_ != from) copy_or_break(meeting_->broadcast_from[from], data, from);
    meet();
  }

  void all_gather(std::span<const std::byte> own, std::span<std::byte> all) override {
    meeting_->gather_from[rank_] = own;
    meet();
    for (std::size_t i = 0; i < meeting_->size; ++i) {
      copy_or_break(meeting_->gather_from[i], all.subspan(i * own.size(), own.size()), i);
    }
    meet();
  }

  void exchange(std::span<const std::span<const std::byte>> to, std::span<const std::span<std::byte>> from) override {
    meeting_->to[rank_] = to;
    meet();
    for (std::size_t i = 0; i < meeting_->size; ++i) {
      const std::size_t sender = (rank_ + i) % meeting_->size;  // Not all read from one at once.
      copy_or_break(meeting_->to[sender][rank_], from[sender], sender);
    }
    meet();
  }

  std::optional<Wait> waits_for() const override {
    const std::scoped_lock lock(meeting_->mutex);
    const auto absent = std::ranges::find(meeting_->arrived, 0);
    if (!waits_since_ || absent == meeting_->arrived.end()) return std::nullopt;
    return Wait{static_cast<int>(absent - meeting_->arrived.begin()),
                std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - *waits_since_)};
  }

  void set_timeout(std::chrono::milliseconds timeout) override { timeout_ = timeout; }
  void abort() noexcept override { meeting_->break_up(fmt::format("rank {} gave up", rank_)); }

 private:
  void copy_or_break(std::span<const std::byte> from, std::span<std::byte> to, std::size_t sender) {
    try {
      copy_piece(from, to, sender, rank_);
    } catch (const Error& error) {
      meeting_->break_up(error.what());
      throw;
    }
  }

  /// Returns when all ranks have arrived.
  void meet() {
    Meeting& all = *meeting_;
    std::unique_lock lock(all.mutex);
    if (!all.broken.empty()) throw_broken(all.broken);
    const std::uint64_t number = all.number;
    all.arrived[rank_] = 1;
    if (++all.waiting == all.size) {
      all.waiting = 0;
      all.arrived.assign(all.size, 0);
      ++all.number;
      all.changed.notify_all();
      return;
    }
    const std::chrono::milliseconds timeout = timeout_;
    const auto over = [&] { return all.number != number || !all.broken.empty(); };
    waits_since_ = Clock::now();
    const bool in_time = all.changed.wait_until(lock, *waits_since_ + timeout, over);
    waits_since_.reset();
    if (all.number != number) return;
    if (!in_time) {
      all.broken =
          fmt::format("{} sent nothing for {:.1f} s", absent_ranks(), std::chrono::duration<double>(timeout).count());
      all.changed.notify_all();
    }
    throw_broken(all.broken);
  }

  std::string absent_ranks() const {
    std::string names;
    for (std::size_t i = 0; i < meeting_->size; ++i) {
      if (meeting_->arrived[i] == 0) names += fmt::format("{}rank {}", names.empty() ? "" : ", ", i);
    }
    return names;
  }

  std::shared_ptr<Meeting> meeting_;
  std::size_t rank_;
  std::optional<Clock::time_point> waits_since_;  ///< The meeting's mutex guards it.
  std::atomic<std::chrono::milliseconds> timeout_{std::chrono::milliseconds(300'000)};
};

bool is_consequence(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const Error& error) {
    return error.code() == ErrorCode::kPeer;
  } catch (...) {
    return false;
  }
}

}  // namespace

std::vector<std::unique_ptr<Group>> make_thread_groups(int size) {
  const auto meeting = std::make_shared<Meeting>(size);
  std::vector<std::unique_ptr<Group>> groups;
  for (std::size_t rank = 0; rank < meeting->size; ++rank) {
    groups.push_back(std::make_unique<ThreadGroup>(meeting, rank));
  }
  return groups;
}

void run_as_threads(int size, const std::function<void(Group&)>& body) {
  std::vector<std::unique_ptr<Group>> groups = make_thread_groups(size);
  std::vector<std::exception_ptr> failures(groups.size());
  {
    std::vector<std::jthread> threads;
    const auto run = [&](std::size_t rank) {
      try {
        body(*groups[rank]);
      } catch (...) {
        failures[rank] = std::current_exception();
        groups[rank]->abort();
      }
    };
    try {
      for (std::size_t rank = 0; rank < groups.size(); ++rank) threads.emplace_back(run, rank);
    } catch (...) {  // There is no memory for a thread. The threads that run already must not wait for it.
      for (const auto& group : groups) group->abort();
      throw;
    }
  }
  std::exception_ptr first;
  for (const std::exception_ptr& failure : failures) {
    if (failure == nullptr) continue;
    if (!is_consequence(failure)) std::rethrow_exception(failure);
    if (first == nullptr) first = failure;
  }
  if (first != nullptr) std::rethrow_exception(first);
}

}  // namespace shard
