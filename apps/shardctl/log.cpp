#include "apps/shardctl/log.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spdlog/logger.h>
#include <spdlog/sinks/ostream_sink.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "apps/shardctl/descriptor_buffer.h"
#include "apps/shardctl/printable.h"
#include "libshard/core/clipped.h"
#include "libshard/core/error.h"

namespace shard::app {

namespace {

/// "rank 1 of 4 on host: " where there are several ranks; percent signs are doubled, as a pattern wants them.
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

/// A regular file that is appended to. Anything else could make the run wait, or take what it gets for something to do.
class LogFile {
 public:
  explicit LogFile(const std::string& path) : descriptor_(open_regular(path)) {}
  ~LogFile() { ::close(descriptor_); }
  LogFile(const LogFile&) = delete;
  LogFile& operator=(const LogFile&) = delete;
  std::ostream& stream() { return stream_; }

 private:
  [[noreturn]] static void fail(const std::string& path, const char* why) {
    throw Error(ErrorCode::kResource, fmt::format("cannot write the log: {}", why))
        .in_file(path)
        .hint("name a file that can be written with --log-file");
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

  const int descriptor_;
  DescriptorBuffer buffer_{descriptor_};
  std::ostream stream_{&buffer_};
};

std::string shown(std::string_view text) { return printable(clipped(text)); }

}  // namespace

struct Log::Impl {
  std::unique_ptr<LogFile> file;
  std::shared_ptr<spdlog::logger> logger;
};

Log::Log(const Session& session) {
  const CommonOptions& options = session.common;
  if (options.verbose == 0 && options.log_file.empty()) return;
  std::vector<spdlog::sink_ptr> sinks;
  std::unique_ptr<LogFile> file;
  if (options.verbose > 0) {
    sinks.push_back(std::make_shared<spdlog::sinks::ostream_sink_mt>(session.err, true));
    sinks.back()->set_level(options.verbose > 1 ? spdlog::level::debug : spdlog::level::info);
    sinks.back()->set_pattern("shardctl: " + who_of(session) + "%v");
  }
  if (!options.log_file.empty()) {
    file = std::make_unique<LogFile>(options.log_file);
    sinks.push_back(std::make_shared<spdlog::sinks::ostream_sink_mt>(file->stream()));
    sinks.back()->set_pattern("%Y-%m-%dT%H:%M:%S.%e %l " + who_of(session) + "%v");
  }
  impl_ = std::make_unique<Impl>(
      Impl{std::move(file), std::make_shared<spdlog::logger>("shardctl", sinks.begin(), sinks.end())});
  impl_->logger->set_level(spdlog::level::debug);
}

Log::~Log() {
  if (impl_) impl_->logger->flush();
}

void Log::info(std::string_view text) {
  if (impl_) impl_->logger->info("{}", shown(text));
}

void Log::debug(std::string_view text) {
  if (impl_) impl_->logger->debug("{}", shown(text));
}

}  // namespace shard::app
