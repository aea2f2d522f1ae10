#include "python/native/verbs.h"

#include <csignal>
#include <cstdlib>
#include <optional>
#include <ostream>
#include <sstream>
#include <utility>

#include "apps/shardctl/app.h"
#include "libshard/io/local_disk.h"

namespace shard::python {
namespace {

std::optional<std::string> environment(const std::string& name) {
  if (name == "SHARDCTL_LAUNCHER") return "none";
  const char* value = std::getenv(name.c_str());
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

}  // namespace

std::deque<std::string> LineBuffer::take() {
  const std::scoped_lock lock(mutex_);
  return std::exchange(lines_, {});
}

std::deque<std::string> LineBuffer::take_all() {
  std::deque<std::string> lines = take();
  if (!last_.empty()) lines.push_back(std::exchange(last_, {}));
  return lines;
}

LineBuffer::int_type LineBuffer::overflow(int_type c) {
  if (traits_type::eq_int_type(c, traits_type::eof())) return traits_type::not_eof(c);
  const char byte = traits_type::to_char_type(c);
  add({&byte, 1});
  return c;
}

std::streamsize LineBuffer::xsputn(const char* data, std::streamsize bytes) {
  add({data, static_cast<std::size_t>(bytes)});
  return bytes;
}

void LineBuffer::add(std::string_view text) {
  const std::scoped_lock lock(mutex_);
  for (std::size_t end = text.find('\n'); end != std::string_view::npos; end = text.find('\n')) {
    lines_.push_back(std::exchange(last_, {}).append(text.substr(0, end)));
    text.remove_prefix(end + 1);
  }
  last_ += text;
}

VerbResult run_verb(const std::vector<std::string>& arguments, LineBuffer& err, const std::stop_token& stop) {
  std::ostringstream out;
  std::ostream errors(&err);
  app::Session session{.fs = posix_disk(),
                       .out = out,
                       .err = errors,
                       .env = environment,
                       .stop = stop,
                       .stop_signal = [&stop] { return stop.stop_requested() ? SIGINT : 0; },
                       .end_at_once = {}};
  const int code = app::run(arguments, session);
  return {code, std::move(out).str()};
}

}  // namespace shard::python
