#include "apps/shardctl/log.h"

#include <spdlog/logger.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/ostream_sink.h>
#include <unistd.h>

#include <array>

#include "libshard/core/error.h"

namespace shard::app {

namespace {

/// "rank 1 of 4 on host: " where there are several ranks; percent signs are doubled, as a pattern wants them.
std::string who_of(const Session& session) {
  if (session.group->size() == 1) return {};
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  std::string who;
  for (const char c : rank_label(session) + " on " + host.data() + ": ") who += c == '%' ? "%%" : std::string(1, c);
  return who;
}

}  // namespace

struct Log::Impl {
  std::shared_ptr<spdlog::logger> logger;
};

Log::Log(const Session& session) {
  const CommonOptions& options = session.common;
  if (options.verbose == 0 && options.log_file.empty()) return;
  std::vector<spdlog::sink_ptr> sinks;
  if (options.verbose > 0) {
    sinks.push_back(std::make_shared<spdlog::sinks::ostream_sink_mt>(session.err, true));
    sinks.back()->set_level(options.verbose > 1 ? spdlog::level::debug : spdlog::level::info);
    sinks.back()->set_pattern("shardctl: " + who_of(session) + "%v");
  }
  if (!options.log_file.empty()) {
    try {
      sinks.push_back(std::make_shared<spdlog::sinks::basic_file_sink_mt>(options.log_file));
    } catch (const spdlog::spdlog_ex& failure) {
      throw Error(ErrorCode::kResource, std::string("cannot write the log: ") + failure.what())
          .in_file(options.log_file)
          .hint("name a file that can be written with --log-file");
    }
    sinks.back()->set_pattern("%Y-%m-%dT%H:%M:%S.%e %l " + who_of(session) + "%v");
  }
  impl_ = std::make_unique<Impl>(Impl{std::make_shared<spdlog::logger>("shardctl", sinks.begin(), sinks.end())});
  impl_->logger->set_level(spdlog::level::debug);
}

Log::~Log() {
  if (impl_) impl_->logger->flush();
}

void Log::info(std::string_view text) {
  if (impl_) impl_->logger->info("{}", printable(text));
}

void Log::debug(std::string_view text) {
  if (impl_) impl_->logger->debug("{}", printable(text));
}

}  // namespace shard::app
