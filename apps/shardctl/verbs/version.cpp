#include <fmt/format.h>
#include <fmt/ranges.h>

#include "apps/shardctl/render/json_parts.h"
#include "apps/shardctl/request/request.h"
#include "apps/shardctl/session/versions.h"
#include "apps/shardctl/text/text_sink.h"
#include "apps/shardctl/verbs/verbs.h"
#include "formats/registry.h"

namespace shard::app {
namespace {

void print_json(Session& session) {
  JsonWriter json(session.out);
  json.begin_object();
  json.key("schema"), json.string("shardctl.version/1");
  json.key("version"), json.string(own_version());
  json.key("compiler"), json.string(compiler());
  json.key("formats"), json.begin_array();
  for (const std::string& name : format_names()) json.string(name);
  json.end_array();
  write_libraries(json);
  json.end_object();
  json.end_line();
}

}  // namespace

int run_version_line(Session& session) {
  TextSink(session.out).line("shardctl " + own_version());
  return 0;
}

int run_version(Session& session, const Request&) {
  if (session.common.json) {
    print_json(session);
    return 0;
  }
  run_version_line(session);
  TextSink sink(session.out);
  sink.line(fmt::format("{:<15}{}", "compiler", compiler()));
  sink.line(fmt::format("{:<15}{}", "formats", fmt::join(format_names(), ", ")));
  for (const auto& [name, version] : library_versions()) sink.line(fmt::format("{:<15}{}", name, version));
  return 0;
}

}  // namespace shard::app
