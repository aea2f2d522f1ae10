#include <fmt/format.h>
#include <fmt/ranges.h>

#include "apps/shardctl/json_parts.h"
#include "apps/shardctl/ranks.h"
#include "apps/shardctl/text_sink.h"
#include "apps/shardctl/verbs.h"
#include "apps/shardctl/versions.h"
#include "libshard/ranks/open_group.h"

namespace shard::app {
namespace {

/// HOST:PORT, or empty where only rank 0 knows it.
std::string rendezvous(const Launch& launch) {
  return launch.address.empty() ? std::string() : fmt::format("{}:{}", launch.address, launch.port);
}

void print_json(Session& session, const Launch& launch, const std::vector<std::string>& backends) {
  JsonWriter json(session.out);
  json.begin_object();
  json.key("schema"), json.string("shardctl.env/1");
  json.key("version"), json.string(own_version());
  json.key("launcher"), json.string(launcher_name(launch.launcher));
  json.key("rank"), json.number(launch.rank);
  json.key("world_size"), json.number(launch.size);
  json.key("local_rank"), json.number(launch.local_rank);
  json.key("local_world_size"), json.number(launch.local_size);
  json.key("rendezvous"), json.string_or_null(rendezvous(launch));
  json.key("cpus"), json.number(usable_cpus());
  json.key("devices"), json.begin_array(), json.end_array();
  write_texts(json, "plugins", backends);
  write_libraries(json);
  json.end_object();
  json.end_line();
}

}  // namespace

int run_env(Session& session, const Options& options) {
  const Launch launch = launch_of(session, options.ranks);
  const std::vector<std::string> backends = backends_here();
  if (session.common.json) {
    print_json(session, launch, backends);
    return 0;
  }
  TextSink sink(session.out);
  const auto line = [&](const std::string& name, const std::string& value) {
    sink.line(fmt::format("{:<15}{}", name, value));
  };
  line("shardctl", own_version());
  line("launcher", std::string(launcher_name(launch.launcher)));
  line("rank", std::to_string(launch.rank));
  line("world size", std::to_string(launch.size));
  line("local rank", fmt::format("{} of {}", launch.local_rank, launch.local_size));
  if (launch.size > 1) line("rendezvous", rendezvous(launch).empty() ? "chosen by rank 0" : rendezvous(launch));
  line("cpus", std::to_string(usable_cpus()));
  line("devices", "none");
  line("plug-ins", backends.empty() ? "none" : fmt::format("{}", fmt::join(backends, ", ")));
  for (const auto& [name, version] : library_versions()) line(name, version);
  return 0;
}

}  // namespace shard::app
