#include <fmt/format.h>

#include "apps/shardctl/json_writer.h"
#include "apps/shardctl/verbs.h"
#include "apps/shardctl/versions.h"

namespace shard::app {
namespace {

void print_json(Session& session) {
  TextSink sink(session.out);
  JsonWriter json(sink);
  json.begin_object();
  json.key("schema"), json.string("shardctl.env/1");
  json.key("version"), json.string(own_version());
  json.key("launcher"), json.string("none");
  json.key("rank"), json.number(0);
  json.key("world_size"), json.number(1);
  json.key("cpus"), json.number(usable_cpus());
  json.key("devices"), json.begin_array(), json.end_array();
  json.key("plugins"), json.begin_array(), json.end_array();
  json.key("libraries"), json.begin_object();
  for (const auto& [name, version] : library_versions()) json.key(name), json.string(version);
  json.end_object();
  json.end_object();
  sink.add('\n');
}

}  // namespace

int run_env(Session& session, const Options& options) {
  if (options.json) {
    print_json(session);
    return 0;
  }
  const auto line = [&](const std::string& name, const std::string& value) {
    session.out << fmt::format("{:<15}{}\n", name, value);
  };
  line("shardctl", own_version());
  line("launcher", "none");
  line("rank", "0");
  line("world size", "1");
  line("cpus", std::to_string(usable_cpus()));
  line("devices", "none");
  line("plug-ins", "none");
  for (const auto& [name, version] : library_versions()) line(name, version);
  return 0;
}

}  // namespace shard::app
