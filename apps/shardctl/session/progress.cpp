#include "apps/shardctl/session/progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <new>

#include "apps/shardctl/text/text_sink.h"
#include "apps/shardctl/text/units.h"
#include "libshard/core/json_writer.h"
#include "libshard/core/short_text.h"

namespace shard::app {
namespace {

constexpr auto kFirst = std::chrono::seconds(1);
constexpr auto kLogEvery = std::chrono::seconds(10);

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// ", waiting for ranks 1, 2, 3 and 5 more"; empty for none.
std::string awaited_text(const std::vector<int>& ranks) {
  constexpr std::ptrdiff_t kNamed = 3;
  if (ranks.empty()) return {};
  const std::vector<std::int64_t> first(ranks.begin(), ranks.begin() + std::min(std::ssize(ranks), kNamed));
  return fmt::format(", waiting for rank{} {}", ranks.size() == 1 ? "" : "s", first_numbers(first, std::ssize(ranks)));
}

}  // namespace

ProgressMeter::Style ProgressMeter::style_of(const Session& session) {
  const CommonOptions& options = session.common;
  if (options.quiet || options.progress == "never" || session.group->rank() != 0) return Style::kNone;
  if (options.progress == "json") return Style::kJson;
  const bool can_redraw = session.err_is_terminal && options.verbose == 0;
  if (options.progress == "always") return can_redraw ? Style::kRedraw : Style::kLines;
  return can_redraw ? Style::kRedraw : Style::kNone;
}

ProgressMeter::ProgressMeter(const Session& session, Log& log, std::string what, std::function<std::int64_t()> own,
                             const std::atomic<std::int64_t>& others)
    : session_(session),
      log_(log),
      style_(style_of(session)),
      tells_own_(session.common.progress == "json" && session.common.verbose > 0 && !session.common.quiet &&
                 session.group->size() > 1),
      what_(std::move(what)),
      own_(std::move(own)),
      others_(others) {
  if (style_ == Style::kNone && !log_.is_on()) return;
  thread_ = std::thread([this] {
    try {
      run();
    } catch (const std::bad_alloc&) {  // The run can do without progress.
    }
  });
}

ProgressMeter::~ProgressMeter() { finish(); }

void ProgressMeter::set_total(std::int64_t bytes) {
  const std::lock_guard lock(mutex_);
  total_ = bytes;
}

void ProgressMeter::finish() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  ended_.notify_all();
  thread_.join();
  if (drawn_ && style_ == Style::kRedraw) TextSink(session_.err).erase_line();
}

void ProgressMeter::run() {
  using std::chrono::milliseconds;
  const milliseconds every = style_ == Style::kRedraw ? milliseconds(100) : is_drawn() ? milliseconds(1000) : kLogEvery;
  const milliseconds first = is_drawn() ? kFirst : kLogEvery;
  auto logged = start_;
  std::unique_lock lock(mutex_);
  for (milliseconds pause = first; !ended_.wait_for(lock, pause, [this] { return over_; }); pause = every) {
    if (is_drawn()) draw();
    if (const auto now = std::chrono::steady_clock::now(); now - logged >= kLogEvery) {
      log_progress();
      logged = now;
    }
  }
  // Print at least one line of JSON, so that a reader sees the end.
  if (style_ == Style::kJson || tells_own_ || (style_ == Style::kLines && drawn_)) draw();
  log_end();
}

/// The ranks that others have waited for long enough to mention: one that is not responding, or slow ones.
std::vector<int> ProgressMeter::late_ranks() const {
  constexpr std::chrono::milliseconds kLong{1000};
  const std::optional<Group::Wait> silent = session_.group->waits_for();
  if (silent && silent->lasts >= kLong) return {silent->rank};
  return awaited_.for_at_least(kLong);
}

ProgressMeter::Figures ProgressMeter::figures(std::int64_t done, std::int64_t total) const {
  const double seconds = std::max(seconds_since(start_), 1e-6);
  Figures now{done, total, seconds, static_cast<double>(done) / seconds, std::nullopt};
  if (done > 0 && total > 0) {
    now.seconds_left = static_cast<double>(std::max<std::int64_t>(0, total - done)) / now.bytes_per_second;
  }
  return now;
}

std::string ProgressMeter::text_of(const Figures& now) const {
  std::string text = fmt::format("{} {}", what_, human_bytes(now.done));
  if (now.total > 0) {
    const double share = std::min(1.0, static_cast<double>(now.done) / static_cast<double>(now.total));
    text += fmt::format(" of {} ({:.0f}%)", human_bytes(now.total), 100 * share);
    if (share > 0.02 && share < 1) text += fmt::format(", {} left", human_seconds(*now.seconds_left));
  }
  return text + fmt::format(", {}/s", human_bytes(static_cast<std::int64_t>(now.bytes_per_second)));
}

void ProgressMeter::draw() {
  drawn_ = true;
  const std::int64_t own = own_();
  if (tells_own_) draw_json(figures(own, 0), {}, session_.group->rank());
  if (style_ == Style::kNone) return;
  const Figures now = figures(own + others_.load(), total_);
  const std::vector<int> awaited = late_ranks();
  if (style_ == Style::kJson) return draw_json(now, awaited, std::nullopt);
  const std::string text = text_of(now) + awaited_text(awaited);
  TextSink sink(session_.err);
  if (style_ == Style::kLines) return sink.line("shardctl: " + text);
  sink.erase_line();
  sink.add(text);
}

void ProgressMeter::draw_json(const Figures& now, const std::vector<int>& awaited, std::optional<int> rank) {
  JsonWriter json(session_.err);
  json.document("shardctl.progress/1", [&] {
    json.key("what"), json.string(what_);
    json.key("bytes_done"), json.number(now.done);
    json.key("bytes_total"), json.number(now.total);
    json.key("seconds"), json.literal(fmt::format("{:.3f}", now.seconds));
    json.key("bytes_per_second"), json.literal(fmt::format("{:.1f}", now.bytes_per_second));
    json.key("seconds_left"), json.literal(now.seconds_left ? fmt::format("{:.3f}", *now.seconds_left) : "null");
    json.key("waiting_for"), json.list(awaited, [&](const int each) { json.number(each); });
    json.key("rank"), rank ? json.number(*rank) : json.null();
  });
}

/// With several ranks, each rank's share of the total is unknown, so the log gives no percentage.
void ProgressMeter::log_progress() { log_.info(text_of(figures(own_(), session_.group->size() == 1 ? total_ : 0))); }

void ProgressMeter::log_end() {
  const Figures now = figures(own_(), 0);
  log_.info(fmt::format("{} {} in {:.1f} s, {}/s", what_, human_bytes(now.done), now.seconds,
                        human_bytes(static_cast<std::int64_t>(now.bytes_per_second))));
}

}  // namespace shard::app
