#include "libshard/ranks/collective_step.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <numeric>
#include <optional>
#include <system_error>
#include <thread>

#include "libshard/core/error.h"
#include "libshard/ranks/wire.h"

namespace shard {

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::duration_cast;
using std::chrono::milliseconds;

constexpr milliseconds kShortest{1}, kLongest{100};
enum State : std::int64_t { kWorking, kDone, kFailed };

struct Tick {
  std::int64_t state = kWorking;
  std::int64_t done_bytes = 0;
};

/// What went wrong on this rank, whoever found it; a rank that a file names says its message.
Error to_error(const std::exception_ptr& failure, int rank) { return as_error(failure).of_rank(rank); }

/// Work on a thread of its own. That there is no thread for it is a failure of the work.
class Worker {
 public:
  Worker(const std::function<void(std::stop_token)>& work, const std::stop_token& outer)
      : forward_(outer, [this] { stop_.request_stop(); }) {
    try {
      thread_ = std::thread([this, &work] { run(work); });
    } catch (const std::system_error&) {
      failure_ = std::current_exception();
      ended_ = true;
    }
  }
  ~Worker() {
    stop_.request_stop();
    if (thread_.joinable()) thread_.join();
  }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  void request_stop() { stop_.request_stop(); }
  /// Waits until the work ended, no longer than `most`.
  State wait(milliseconds most) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, most, [this] { return ended_; });
    if (!ended_) return kWorking;
    return failure_ == nullptr ? kDone : kFailed;
  }
  std::exception_ptr failure() {
    const std::scoped_lock lock(mutex_);
    return failure_;
  }

 private:
  void run(const std::function<void(std::stop_token)>& work) {
    std::exception_ptr failure;
    try {
      work(stop_.get_token());
    } catch (...) {
      failure = std::current_exception();
    }
    const std::scoped_lock lock(mutex_);
    failure_ = failure;
    ended_ = true;
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool ended_ = false;
  std::exception_ptr failure_;
  std::stop_source stop_;
  std::stop_callback<std::function<void()>> forward_;
  std::thread thread_;
};

std::vector<Tick> exchange_ticks(Group& group, const Tick& own) {
  std::vector<Tick> ticks(static_cast<std::size_t>(group.size()));
  group.all_gather(std::as_bytes(std::span(&own, 1)), std::as_writable_bytes(std::span(ticks)));
  return ticks;
}

/// Tells all ranks what went wrong where. \returns the cause.
Error exchange_failures(Group& group, const std::optional<Error>& own) {
  WireWriter writer;
  if (own) writer.error(*own);
  std::optional<Error> cause;
  for (const Bytes& piece : all_gather(group, writer.take())) {
    if (piece.empty()) continue;
    const Error error = WireReader(piece).error();
    const bool is_better = !cause || (cause->code() == ErrorCode::kInterrupted && error.code() != cause->code());
    if (is_better) cause.emplace(error);
  }
  return *cause;
}

/// A lost peer is not the cause where this rank knows one: its own failure, or that it was told to stop and then waited
/// for the others in vain.
Error cause_of_loss(Worker& worker, int rank, const Error& lost, bool waited_in_vain) {
  if (worker.wait(milliseconds(0)) == kFailed) {
    Error own = to_error(worker.failure(), rank);
    if (own.code() != ErrorCode::kInterrupted) return own;
  }
  return waited_in_vain ? Error(ErrorCode::kInterrupted, "interrupted") : lost;
}

milliseconds interval(Clock::time_point begin) {
  return std::clamp(duration_cast<milliseconds>(Clock::now() - begin) / 20, kShortest, kLongest);
}

bool any_is(const std::vector<Tick>& ticks, State state) {
  return std::ranges::any_of(ticks, [&](const Tick& tick) { return tick.state == state; });
}

/// A rank that was told to stop does not wait for the others' work when its own is done.
State state_of(Worker& worker, milliseconds most, const std::stop_token& stop) {
  const State state = worker.wait(most);
  return state == kDone && stop.stop_requested() ? kFailed : state;
}

/// This rank's part in the cause. An interruption is none where it follows another rank's failure.
std::optional<Error> own_failure(Worker& worker, State state, int rank, bool is_of_the_first) {
  if (state != kFailed) return std::nullopt;
  const std::exception_ptr failure = worker.failure();
  Error own =
      failure == nullptr ? Error(ErrorCode::kInterrupted, "interrupted").of_rank(rank) : to_error(failure, rank);
  if (own.code() == ErrorCode::kInterrupted && !is_of_the_first) return std::nullopt;
  return own;
}

/// Meets the other ranks until the work of all is done. \returns what went wrong, if anything. \throws Error kPeer
std::optional<Error> run_together(Group& group, const CollectiveStepOptions& options, Worker& worker,
                                  Clock::time_point begin) {
  const std::int64_t last_meetings = options.patience / kLongest;
  bool is_of_the_first = false;
  for (std::int64_t after_failure = 0;;) {
    const State state = state_of(worker, after_failure == 0 ? interval(begin) : kLongest, options.stop);
    const std::vector<Tick> ticks =
        exchange_ticks(group, {state, options.done_bytes ? options.done_bytes() : std::int64_t{0}});
    if (group.rank() == 0 && options.on_sum) {
      options.on_sum(std::accumulate(ticks.begin(), ticks.end(), std::int64_t{0},
                                     [](std::int64_t sum, const Tick& tick) { return sum + tick.done_bytes; }));
    }
    if (any_is(ticks, kFailed)) {
      if (after_failure == 0) is_of_the_first = state == kFailed;
      worker.request_stop();
      if (any_is(ticks, kWorking) && ++after_failure < last_meetings) continue;
      return exchange_failures(group, own_failure(worker, state, group.rank(), is_of_the_first));
    }
    if (!any_is(ticks, kWorking)) return std::nullopt;
  }
}

}  // namespace

void collective_step(Group& group, const CollectiveStepOptions& options,
                     const std::function<void(std::stop_token)>& work) {
  if (group.size() == 1) return work(options.stop);
  const Clock::time_point begin = Clock::now();
  std::atomic<Clock::time_point> patience_ends{Clock::time_point::max()};
  const std::stop_callback hurry(options.stop, [&] {
    patience_ends = Clock::now() + options.patience;
    group.set_timeout(options.patience);
  });
  Worker worker(work, options.stop);
  std::optional<Error> cause;
  try {
    cause = run_together(group, options, worker, begin);
  } catch (const Error& lost) {
    group.abort();  // Not all of the others need have seen it.
    throw cause_of_loss(worker, group.rank(), lost, Clock::now() >= patience_ends.load());
  } catch (...) {  // No memory to say what went wrong: the others must not wait for it.
    group.abort();
    throw;
  }
  if (cause) throw Error(*cause);
}

void expect_same(Group& group, std::string_view text, ErrorCode code, std::string_view what) {
  const std::vector<Bytes> texts = all_gather(group, std::as_bytes(std::span(text)));
  for (std::size_t rank = 1; rank < texts.size(); ++rank) {
    if (texts[rank] == texts[0]) continue;
    throw Error(code, fmt::format("rank {} and rank 0: {}", rank, what))
        .expected(as_text(texts[0]))
        .found(as_text(texts[rank]))
        .of_rank(static_cast<int>(rank));
  }
}

}  // namespace shard
