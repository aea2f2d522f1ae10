#include "apps/shardctl/session/log.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spdlog/logger.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/sinks/ostream_sink.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <mutex>

#include "apps/shardctl/text/printable.h"
#include "libshard/core/error.h"
#include "libshard/core/short_text.h"

namespace shard::app {

namespace {

/// "rank 1 of 4 on host: " if there are several ranks. Percent signs are doubled for a spdlog pattern.
std::string who_of(const Session& session) {
  if (session.group->size() == 1) return {};
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  std::string who;
  for (const char c : printable(rank_label(session) + " on " + host.data() + ": ")) {
    who += c == '%' ? "%%" : std::string(1, c);
  }
  return who;
}

/// Appends to a regular file. Other files could block the run, or act on the lines.
class FileSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit FileSink(const std::string& path) : path_(path), descriptor_(open_regular(path_)) {}
  ~FileSink() override { ::close(descriptor_); }

  /// The number of lines that are missing in the file, and the reason; empty if there are none. \pre logging has ended
  std::string losses() const {
    if (lost_ == 0) return {};
    return fmt::format("cannot write {} to the log {}: {}", plural(lost_, "line"), path_, std::strerror(error_));
  }

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    std::size_t done = 0;
    while (done < line.size()) {
      const ssize_t written = ::write(descriptor_, line.data() + done, line.size() - done);
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) {
        error_ = errno;
        ++lost_;
        return;
      }
      done += static_cast<std::size_t>(written);
    }
  }
  void flush_() override {}  // Lines are not buffered.

 private:
  [[noreturn]] static void fail(const std::string& path, const char* why) {
    throw Error(ErrorCode::kResource, fmt::format("cannot write the log: {}", why))
        .in_file(path)
        .hint("pass a writable file to --log-file");
  }

  static int open_regular(const std::string& path) {
    constexpr int kFlags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
    struct stat info {};
    const bool is_there = ::stat(path.c_str(), &info) == 0;
    if (is_there && !S_ISREG(info.st_mode)) fail(path, "it is not a regular file");
    const int descriptor = ::open(path.c_str(), kFlags, 0666);
    if (descriptor < 0) fail(path, std::strerror(errno));
    if (::fstat(descriptor, &info) == 0 && S_ISREG(info.st_mode)) return descriptor;
    ::close(descriptor);
    fail(path, "it is not a regular file");
  }

  const std::string path_;
  const int descriptor_;
  std::int64_t lost_ = 0;
  int error_ = 0;
};

std::shared_ptr<FileSink> open_file(const Session& session) {
  auto file = std::make_shared<FileSink>(session.common.log_file);
  file->set_pattern("%Y-%m-%dT%H:%M:%S.%e %l " + who_of(session) + "%v");
  return file;
}

std::string shown(std::string_view text) { return printable(clipped(text)); }

}  // namespace

struct Log::Impl {
  const Session& session;
  std::shared_ptr<FileSink> file;
  std::shared_ptr<spdlog::logger> logger;
};

Log::Log(const Session& session) {
  const CommonOptions& options = session.common;
  if (options.verbose == 0 && options.log_file.empty()) return;
  std::vector<spdlog::sink_ptr> sinks;
  std::shared_ptr<FileSink> file;
  if (options.verbose > 0) {
    sinks.push_back(std::make_shared<spdlog::sinks::ostream_sink_mt>(session.err, true));
    sinks.back()->set_level(options.verbose > 1 ? spdlog::level::debug : spdlog::level::info);
    sinks.back()->set_pattern("shardctl: " + who_of(session) + "%v");
  }
  if (!options.log_file.empty()) {
    file = open_file(session);
    sinks.push_back(file);
  }
  impl_ = std::make_unique<Impl>(
      Impl{session, std::move(file), std::make_shared<spdlog::logger>("shardctl", sinks.begin(), sinks.end())});
  impl_->logger->set_level(spdlog::level::debug);
}

Log::~Log() {
  if (impl_ == nullptr || impl_->file == nullptr) return;
  try {
    if (const std::string losses = impl_->file->losses(); !losses.empty()) warn(impl_->session, losses);
  } catch (const std::bad_alloc&) {
    return;  // Without memory there is no warning.
  }
}

void Log::info(std::string_view text) {
  if (impl_) impl_->logger->info("{}", shown(text));
}

void Log::debug(std::string_view text) {
  if (impl_) impl_->logger->debug("{}", shown(text));
}

void log_to_file(const Session& session, LogLevel level, std::string_view text) {
  if (session.common.log_file.empty()) return;
  try {
    spdlog::logger logger("shardctl", open_file(session));
    logger.log(level == LogLevel::kInfo      ? spdlog::level::info
               : level == LogLevel::kWarning ? spdlog::level::warn
                                             : spdlog::level::err,
               "{}", shown(text));
  } catch (const Error&) {
    return;  // The line is also on stderr, or stderr reported the failure when the log was opened.
  }
}

}  // namespace shard::app
