#include "libshard/dist/together.h"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>

#include "libshard/core/error.h"
#include "libshard/dist/wire.h"

namespace shard {

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::duration_cast;
using std::chrono::milliseconds;

constexpr milliseconds kShortest{1}, kLongest{100};
/// How long a rank that was told to stop waits for the others: launchers kill soon after they said so.
constexpr milliseconds kPatience{3 * kLongest};

enum State : std::int64_t { kWorking, kDone, kFailed };

struct Tick {
  std::int64_t state = kWorking;
  std::int64_t done_bytes = 0;
};

/// What went wrong on this rank, as an Error whatever it was.
Error to_error(const std::exception_ptr& failure, int rank) {
  try {
    std::rethrow_exception(failure);
  } catch (Error& error) {
    return error.of_rank(rank);  // Whoever found it; a rank that a file names says its message.
  } catch (const std::bad_alloc&) {
    return Error(ErrorCode::kResource, "out of memory").of_rank(rank);
  } catch (const std::exception& error) {
    return Error(ErrorCode::kInternal, error.what()).of_rank(rank);
  }
}

/// Work on a thread of its own.
class Worker {
 public:
  Worker(const std::function<void(std::stop_token)>& work, const std::stop_token& outer)
      : forward_(outer, [this] { stop_.request_stop(); }), thread_([this, &work] {
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
        }) {}
  ~Worker() {
    stop_.request_stop();
    thread_.join();
  }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

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

/// A lost peer is no cause where this rank knows one.
[[noreturn]] void throw_lost(Worker& worker, int rank, const Error& lost) {
  if (worker.wait(milliseconds(0)) != kFailed) throw Error(lost);
  const Error own = to_error(worker.failure(), rank);
  throw Error(own.code() == ErrorCode::kInterrupted ? lost : own);
}

milliseconds interval(Clock::time_point begin) {
  return std::clamp(duration_cast<milliseconds>(Clock::now() - begin) / 20, kShortest, kLongest);
}

}  // namespace

void together(Group& group, const TogetherOptions& options, const std::function<void(std::stop_token)>& work) {
  if (group.size() == 1) return work(options.stop);
  const Clock::time_point begin = Clock::now();
  const std::stop_callback hurry(options.stop, [&group] { group.set_timeout(kPatience); });
  Worker worker(work, options.stop);
  for (;;) {
    const State state = worker.wait(interval(begin));
    std::optional<Error> cause;
    try {
      const std::vector<Tick> ticks =
          exchange_ticks(group, {state, options.done_bytes ? options.done_bytes() : std::int64_t{0}});
      if (group.rank() == 0 && options.on_sum) {
        std::int64_t sum = 0;
        for (const Tick& tick : ticks) sum += tick.done_bytes;
        options.on_sum(sum);
      }
      if (std::ranges::all_of(ticks, [](const Tick& tick) { return tick.state == kDone; })) return;
      if (std::ranges::none_of(ticks, [](const Tick& tick) { return tick.state == kFailed; })) continue;
      std::optional<Error> own;
      if (state == kFailed) own.emplace(to_error(worker.failure(), group.rank()));
      cause.emplace(exchange_failures(group, own));
    } catch (const Error& lost) {
      throw_lost(worker, group.rank(), lost);
    }
    throw Error(*cause);
  }
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
