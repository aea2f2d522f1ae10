#include "apps/shardctl/render/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <mutex>
#include <thread>

#include "apps/shardctl/arguments/remedy_text.h"
#include "apps/shardctl/render/json_parts.h"
#include "apps/shardctl/session/log.h"
#include "apps/shardctl/session/ranks.h"
#include "apps/shardctl/text/text_sink.h"
#include "libshard/core/ascii.h"
#include "libshard/core/error_text.h"
#include "libshard/core/json_writer.h"
#include "libshard/core/parse_number.h"
#include "libshard/core/short_text.h"
#include "libshard/io/paths.h"

namespace shard::app {
namespace {

constexpr std::chrono::milliseconds kTurn{2000}, kLastTurn{6000};
constexpr std::size_t kNameFront = 100;  ///< Bytes of DST's name that its siblings' names begin with.
/// The time that a rank that is asked to stop gives rank 0 to clean up. mpirun kills all ranks once one has ended.
constexpr std::chrono::milliseconds kLinger{600};

void print_lines(const Session& session, const Error& error, const std::string& hint, std::string_view label) {
  const bool colour = colours_errors(session);
  TextSink sink(session.err);
  const ErrorLines lines = lines_of(error, session.group->size() > 1);
  sink.add("shardctl: ");
  sink.painted("1;31", label, colour);
  sink.line(" " + lines.headline);
  std::string logged = lines.headline;
  const auto line = [&](std::string_view code, std::string_view what, const std::string& text) {
    if (text.empty()) return;
    logged += fmt::format("; {}{}", what, text);
    sink.spaces(2);
    sink.painted(code, what, colour);
    sink.line(text);
  };
  line("1", "why:", lines.why.empty() ? "" : "  " + lines.why);
  line("36", "hint:", hint.empty() ? "" : " " + hint);
  log_to_file(session, LogLevel::kError, logged);
}

/// Whether `text` contains `word` between characters that no name of an option or value has.
bool has_word(std::string_view text, std::string_view word) {
  const auto is_inside = [](char c) { return is_alphanumeric({&c, 1}, "-_"); };
  for (std::size_t at = text.find(word); at != std::string_view::npos; at = text.find(word, at + 1)) {
    const std::size_t end = at + word.size();
    if ((at == 0 || !is_inside(text[at - 1])) && (end == text.size() || !is_inside(text[end]))) return true;
  }
  return false;
}

/// Adds the variables and the file that set the options or values in the error's texts: users forget those.
void name_origins(Error& error, const TypedCommand& command) {
  const std::string text = fmt::format("{}\n{}\n{}\n{}", error.what(), error.file(), error.why(), error.found());
  for (const Setting& setting : command.origins) {
    const bool is_word = !setting.is_flag && !setting.value.empty() && !parse_number<double>(setting.value);
    const bool has_value = is_word && has_word(text, setting.value);
    if (!has_value && !has_word(text, "--" + setting.option)) continue;
    if (error.file() == setting.origin || has_word(error.why(), setting.origin)) continue;
    error.because(
        fmt::format("{}{}{} sets --{}", error.why(), error.why().empty() ? "" : "; ", setting.origin, setting.option));
  }
}

/// Prints `shardctl.error/1`. `code` is the exit code. `kind` is the finding's kind, or the name of the error's code if
/// there is no finding.
void print_json(const Session& session, const Error& error, const std::string& hint, int code, std::string_view kind) {
  JsonWriter json(session.out);
  json.document("shardctl.error/1", [&] {
    json.key("verb"), json.string_or_null(session.command.verb);
    json.key("code"), json.number(code);
    json.key("kind"), json.string(kind);
    json.key("message"), json.string(error.what());
    json.key("file"), json.string_or_null(error.file());
    json.key("tensor"), json.string_or_null(error.tensor());
    json.key("rank"), error.rank() ? json.number(*error.rank()) : json.null();
    json.key("expected"), json.string_or_null(error.expected());
    json.key("found"), json.string_or_null(error.found());
    json.key("hint"), json.string_or_null(hint);
    if (!session.error_details.empty()) write_texts(json, "details", session.error_details);
  });
}

/// Waits for this rank's turn to report. Returns whether the launcher has not asked it to stop meanwhile. If all ranks
/// see a failure (a dead rank, a failed rendezvous, bad usage), the first rank still running reports it. Once that rank
/// has ended, launchers end the others.
bool is_still_wanted(const Session& session, int rank) {
  std::mutex mutex;
  std::unique_lock lock(mutex);
  std::condition_variable_any never;
  never.wait_for(lock, session.stop, std::min(rank * kTurn, kLastTurn), [] { return false; });
  if (!session.stop.stop_requested()) return true;
  if (rank > 0) std::this_thread::sleep_for(kLinger);
  return false;
}

/// Whether this rank reports the error. In a group, that is the rank that found the cause, if it is known.
bool reports_error(const Session& session, const Error& error) {
  const bool is_grouped = session.group->size() > 1;
  if (!is_grouped) return session.launch.size == 1 || is_still_wanted(session, session.launch.rank);
  const int own = session.group->rank();
  if (error.rank()) return own == *error.rank();
  const bool can_be_alone = session.group->backend() != "threads";
  return own == 0 || (can_be_alone && is_still_wanted(session, own));
}

}  // namespace

int exit_code_for(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return 2;
    case ErrorCode::kNotFound:
      return 3;
    case ErrorCode::kCorruption:
      return 4;
    case ErrorCode::kExists:
      return 5;
    case ErrorCode::kResource:
      return 6;
    case ErrorCode::kPeer:
      return 7;
    case ErrorCode::kUnsupported:
      return 8;
    case ErrorCode::kInterrupted:
      return 130;
    case ErrorCode::kInternal:
      break;
  }
  return kExitInternal;
}

Error of_destination(Error error, const std::string& destination) {
  const std::string& path = error.file();
  const std::size_t mark = path.find(".shardctl-");
  if (mark == std::string::npos) return error;
  const std::size_t begin = path.rfind('/', mark) + 1, end = path.find('/', mark);  // npos + 1 is 0.
  const std::string front = "." + base_name(destination).substr(0, kNameFront);
  if (!path.substr(begin).starts_with(front)) return error;
  const std::string inside = end == std::string::npos ? base_name(destination) : path.substr(end + 1);
  return error.replace_file(path.substr(0, begin) + inside);
}

int report(Session& session, const Request& request, const std::exception_ptr& failure) {
  Error error = as_error(failure);
  const bool is_bug = error.code() == ErrorCode::kInternal;
  if (is_bug) {
    error.because("this is a bug in shardctl, not a mistake in the checkpoint or the command")
        .hint("report it with the command line and the output of 'shardctl version'");
  }
  name_origins(error, session.command);
  const bool is_reported = reports_error(session, error);
  const std::string hint = hint_text(error, request, session.command.arguments);
  if (is_reported) {
    print_lines(session, error, hint, is_bug ? "internal error:" : "error:");
    write_error_file(
        session.fs, session.launch.error_file,
        "shardctl: error: " + printable(error.what()) + (hint.empty() ? "" : "\nhint: " + printable(hint)));
  }
  int code = exit_code_for(error.code());
  if (error.code() == ErrorCode::kInterrupted) {
    const int signal = session.stop_signal();
    // The signal that stopped a different rank is unknown. Launchers send SIGTERM.
    const bool by_other = session.group->size() > 1 && signal == 0;
    if (signal != 0 || by_other) code = 128 + (by_other ? SIGTERM : signal);
  }
  if (session.common.json && (is_reported || session.group->size() > 1))
    print_json(session, error, hint, code, error.kind() ? kind_name(*error.kind()) : code_name(error.code()));
  return code;
}

}  // namespace shard::app
