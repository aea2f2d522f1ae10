#include "libshard/ranks/collective_step.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <optional>
#include <system_error>
#include <thread>

#include "libshard/ranks/wire.h"

namespace shard {

void AwaitedTraffic::begin(StepHandle& step) {
  const std::scoped_lock lock(mutex_);
  step_ = &step;
  is_stopped_ = false;
}

void AwaitedTraffic::end() {
  const std::scoped_lock lock(mutex_);
  step_ = nullptr;
}

void AwaitedTraffic::stop() {
  const std::scoped_lock lock(mutex_);
  is_stopped_ = true;
  changed_.notify_all();
}

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::duration_cast;
using std::chrono::milliseconds;

constexpr milliseconds kShortest{1}, kLongest{100}, kLongestInTraffic{16};
enum State : std::int64_t { kWorking, kDone, kFailed };

struct Tick {
  std::int64_t state = kWorking;
  std::int64_t done_bytes = 0;
  std::int64_t word = 0;  ///< The word of the traffic.
  std::int64_t flags = 0;
};
/// Flags: the rank's work is done, or waits for others; the rank (rank 0) requests names of late ranks.
constexpr std::int64_t kWaits = 1, kWantsNames = 2;

/// The error of this rank, with the rank's number in place of the rank of a file that it may name.
Error to_error(const std::exception_ptr& failure, int rank) { return as_error(failure).of_rank(rank); }

/// Runs the work on a separate thread. If no thread can be created, the work has failed.
class Worker final : public StepHandle {
 public:
  Worker(const std::function<void(std::stop_token)>& work, const std::stop_token& outer, StepTraffic* traffic)
      : traffic_(traffic), forward_(outer, [this] { request_stop(); }) {
    if (traffic_ != nullptr) traffic_->begin(*this);
    if (outer.stop_requested()) request_stop();  // The traffic may not have begun yet.
    try {
      thread_ = std::thread([this, &work] { run(work); });
    } catch (const std::system_error&) {
      failure_ = std::current_exception();
      ended_ = true;
    }
  }
  ~Worker() override {
    request_stop();
    if (thread_.joinable()) thread_.join();
    if (traffic_ != nullptr) traffic_->end();
  }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  void request_stop() {
    stop_.request_stop();
    if (traffic_ != nullptr) traffic_->stop();
  }
  void wake() override {
    const std::scoped_lock lock(mutex_);
    is_awake_ = true;
    changed_.notify_all();
  }
  void fail(std::exception_ptr cause) override {
    {
      const std::scoped_lock lock(mutex_);
      if (failure_ == nullptr) failure_ = std::move(cause);
    }
    request_stop();
  }
  /// Waits until the work ends or the traffic wakes this rank, at most `most`.
  State wait(milliseconds most) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, most, [this] { return ended_ || is_awake_; });
    is_awake_ = false;
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
    if (failure_ == nullptr) failure_ = failure;
    ended_ = true;
    changed_.notify_all();
  }

  StepTraffic* const traffic_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ended_ = false, is_awake_ = false;
  std::exception_ptr failure_;
  std::stop_source stop_;
  std::stop_callback<std::function<void()>> forward_;
  std::thread thread_;
};

/// all_gather_values through rank 0, which therefore knows whose tick is missing (Group::waits_for).
std::vector<Tick> exchange_ticks_by_name(Group& group, const Tick& own) {
  const auto ranks = static_cast<std::size_t>(group.size());
  std::vector<Tick> ticks(ranks);
  std::vector<std::span<const std::byte>> to(ranks);
  std::vector<std::span<std::byte>> from(ranks);
  to.front() = std::as_bytes(std::span(&own, 1));
  for (std::size_t rank = 0; group.rank() == 0 && rank < ranks; ++rank) {
    from[rank] = std::as_writable_bytes(std::span(ticks).subspan(rank, 1));
  }
  group.exchange(to, from);
  group.broadcast(std::as_writable_bytes(std::span(ticks)), 0);
  return ticks;
}

/// Sends all failures to all ranks. \returns the cause.
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

/// A lost peer is not the cause if this rank knows one: its own failure, or a stop request after which it waited for
/// the others in vain.
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

/// After a stop request, a rank does not wait for the others' work once its own is done.
State state_of(Worker& worker, milliseconds most, const std::stop_token& stop) {
  const State state = worker.wait(most);
  return state == kDone && stop.stop_requested() ? kFailed : state;
}

/// This rank's own failure. An interruption that follows a different rank's failure is not one.
std::optional<Error> own_failure(Worker& worker, State state, int rank, const StepTraffic* traffic,
                                 bool is_of_the_first) {
  if (state != kFailed) return std::nullopt;
  const std::exception_ptr failure = worker.failure();
  Error own =
      failure == nullptr ? Error(ErrorCode::kInterrupted, "interrupted").of_rank(rank) : to_error(failure, rank);
  if (traffic != nullptr) traffic->attribute(own);
  if (own.code() == ErrorCode::kInterrupted && !is_of_the_first) return std::nullopt;
  return own;
}

/// The time until the next exchange of a rank that has nothing to send.
class Pace {
 public:
  milliseconds next(Clock::time_point begin) const {
    return in_traffic_ > milliseconds(0) ? in_traffic_ : interval(begin);
  }
  void see(bool has_traffic, bool was_moved) {
    if (!has_traffic) {
      in_traffic_ = milliseconds(0);
    } else {
      in_traffic_ = was_moved ? kShortest : std::clamp(in_traffic_ * 2, kShortest, kLongestInTraffic);
    }
  }

 private:
  milliseconds in_traffic_{0};
};

/// On rank 0: reports the content of all ticks to the rest of this process.
void tell(const CollectiveStepOptions& options, const std::vector<Tick>& ticks) {
  if (options.on_sum) {
    options.on_sum(std::accumulate(ticks.begin(), ticks.end(), std::int64_t{0},
                                   [](std::int64_t sum, const Tick& tick) { return sum + tick.done_bytes; }));
  }
  if (options.awaited == nullptr) return;
  std::vector<bool> waits;
  for (const Tick& tick : ticks) waits.push_back((tick.flags & kWaits) != 0);
  options.awaited->see(waits);
}

Tick own_tick(const CollectiveStepOptions& options, State state, std::int64_t word) {
  const bool waits = state == kDone || (options.traffic != nullptr && options.traffic->waits());
  return {state, options.done_bytes ? options.done_bytes() : 0, word,
          (waits ? kWaits : 0) | (options.awaited != nullptr ? kWantsNames : 0)};
}

/// Transfers the traffic that the ranks announced.
void move_traffic(Group& group, StepTraffic* traffic, const std::vector<Tick>& ticks, Pace& pace) {
  if (traffic == nullptr) return;
  std::vector<std::int64_t> words;
  for (const Tick& tick : ticks) words.push_back(tick.word);
  const bool was_moved = traffic->move(group, words);
  pace.see(std::ranges::any_of(words, [](std::int64_t word) { return word > 0; }), was_moved);
}

/// Exchanges ticks with the other ranks until the work of all is done. \returns the failure, if there is one. \throws
/// Error kPeer
std::optional<Error> run_together(Group& group, const CollectiveStepOptions& options, Worker& worker,
                                  Clock::time_point begin) {
  const std::int64_t last_meetings = options.patience / kLongest;
  bool is_of_the_first = false;
  bool is_by_name = true;  // At the first exchange, only rank 0 knows whether it needs names.
  Pace pace;
  for (std::int64_t after_failure = 0;;) {
    std::int64_t word = options.traffic == nullptr ? 0 : options.traffic->word();
    const milliseconds most = after_failure != 0 ? kLongest : word > 0 ? milliseconds(0) : pace.next(begin);
    const State state = state_of(worker, most, options.stop);
    if (options.traffic != nullptr && word <= 0) word = options.traffic->word();  // The word that caused the wake-up.
    const Tick own = own_tick(options, state, word);
    const std::vector<Tick> ticks = is_by_name ? exchange_ticks_by_name(group, own) : all_gather_values(group, own);
    is_by_name = (ticks.front().flags & kWantsNames) != 0;
    if (group.rank() == 0) tell(options, ticks);
    if (any_is(ticks, kFailed)) {
      if (after_failure == 0) is_of_the_first = state == kFailed;
      worker.request_stop();
      if (any_is(ticks, kWorking) && ++after_failure < last_meetings) continue;
      return exchange_failures(group, own_failure(worker, state, group.rank(), options.traffic, is_of_the_first));
    }
    if (!any_is(ticks, kWorking)) return std::nullopt;
    move_traffic(group, options.traffic, ticks, pace);
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
  Worker worker(work, options.stop, options.traffic);
  std::optional<Error> cause;
  try {
    cause = run_together(group, options, worker, begin);
  } catch (const Error& lost) {
    group.abort();  // Other ranks may not have noticed the loss.
    throw cause_of_loss(worker, group.rank(), lost, Clock::now() >= patience_ends.load());
  } catch (...) {  // There is no memory for the failure's message. The others must not wait for it.
    group.abort();
    throw;
  }
  if (options.awaited != nullptr) options.awaited->clear();
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
