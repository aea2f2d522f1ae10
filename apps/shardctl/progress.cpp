#include "apps/shardctl/progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <new>

#include "apps/shardctl/json_writer.h"
#include "apps/shardctl/text_sink.h"

namespace shard::app {
namespace {

constexpr auto kFirst = std::chrono::seconds(1);

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// ", waiting for ranks 1, 2, 3 and 5 more"; empty for none.
std::string awaited_text(const std::vector<int>& ranks) {
  constexpr std::size_t kNamed = 3;
  if (ranks.empty()) return {};
  const std::size_t named = std::min(ranks.size(), kNamed);
  std::string text = fmt::format(", waiting for rank{} {}", ranks.size() == 1 ? "" : "s",
                                 fmt::join(ranks.begin(), ranks.begin() + static_cast<std::ptrdiff_t>(named), ", "));
  if (ranks.size() > named) text += fmt::format(" and {} more", ranks.size() - named);
  return text;
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

ProgressMeter::ProgressMeter(const Session& session, std::string what, std::function<std::int64_t()> done)
    : session_(session), style_(style_of(session)), what_(std::move(what)), done_(std::move(done)) {
  if (style_ == Style::kNone) return;
  thread_ = std::thread([this] {
    try {
      run();
    } catch (const std::bad_alloc&) {  // The run may do without.
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
  const auto every = style_ == Style::kRedraw ? milliseconds(100) : milliseconds(1000);
  std::unique_lock lock(mutex_);
  if (ended_.wait_for(lock, kFirst, [this] { return over_; })) {
    if (style_ == Style::kJson) draw();  // One line at least, so that a reader sees the end.
    return;
  }
  do draw();
  while (!ended_.wait_for(lock, every, [this] { return over_; }));
  if (style_ != Style::kRedraw) draw();
}

/// Those that the others have waited for, for so long that it is worth a word: one that is silent, or slow ones.
std::vector<int> ProgressMeter::awaited_ranks() const {
  constexpr std::chrono::milliseconds kLong{1000};
  const std::optional<Group::Wait> silent = session_.group->waits_for();
  if (silent && silent->lasts >= kLong) return {silent->rank};
  return awaited_.for_at_least(kLong);
}

void ProgressMeter::draw() {
  drawn_ = true;
  const std::int64_t done = done_();
  const double seconds = seconds_since(start_);
  const std::vector<int> awaited = awaited_ranks();
  if (style_ == Style::kJson) {
    JsonWriter json(session_.err);
    json.begin_object();
    json.key("schema"), json.string("shardctl.progress/1");
    json.key("what"), json.string(what_);
    json.key("bytes_done"), json.number(done);
    json.key("bytes_total"), json.number(total_);
    json.key("seconds"), json.literal(fmt::format("{:.3f}", seconds));
    json.key("waiting_for");
    json.begin_array();
    for (const int rank : awaited) json.number(rank);
    json.end_array();
    json.end_object();
    json.end_line();
    return;
  }
  std::string text = fmt::format("{} {}", what_, human_bytes(done));
  if (total_ > 0) {
    const double share = std::min(1.0, static_cast<double>(done) / static_cast<double>(total_));
    text += fmt::format(" of {} ({:.0f}%)", human_bytes(total_), 100 * share);
    if (share > 0.02 && share < 1) text += fmt::format(", {:.0f} s left", seconds / share - seconds);
  }
  text += fmt::format(", {}/s", human_bytes(static_cast<std::int64_t>(static_cast<double>(done) / seconds)));
  text += awaited_text(awaited);
  TextSink sink(session_.err);
  if (style_ == Style::kLines) return sink.line("shardctl: " + text);
  sink.erase_line();
  sink.add(text);
}

}  // namespace shard::app
