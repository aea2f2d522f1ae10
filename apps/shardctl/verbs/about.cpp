/// \file
/// Verbs about the program itself: help, completion, version and env.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "apps/shardctl/arguments/completion.h"
#include "apps/shardctl/arguments/help.h"
#include "apps/shardctl/render/json_parts.h"
#include "apps/shardctl/request/request.h"
#include "apps/shardctl/session/ranks.h"
#include "apps/shardctl/session/versions.h"
#include "apps/shardctl/text/text_sink.h"
#include "apps/shardctl/text/units.h"
#include "apps/shardctl/verbs/verbs.h"
#include "formats/helper.h"
#include "formats/registry.h"
#include "libshard/core/processor.h"
#include "libshard/device/device_system.h"
#include "libshard/ranks/open_group.h"

namespace shard::app {
namespace {

void print_version_json(Session& session) {
  JsonWriter json(session.out);
  json.document("shardctl.version/1", [&] {
    json.key("version"), json.string(own_version());
    json.key("compiler"), json.string(compiler());
    json.key("formats"), json.list(format_names(), [&](const std::string& name) { json.string(name); });
    write_libraries(json);
  });
}

/// HOST:PORT, or empty if only rank 0 knows it.
std::string rendezvous(const Launch& launch) {
  return launch.address.empty() ? std::string() : fmt::format("{}:{}", launch.address, launch.port);
}

/// An option's value as text; empty if it has none.
std::string version_or_empty(DeviceVersion version) { return version == 0 ? std::string() : version_text(version); }

std::string capability(const DeviceInfo& device) { return fmt::format("{}.{}", device.major, device.minor); }

void write_devices(JsonWriter& json, const DeviceSystem& system) {
  json.key("devices"), json.objects(system.devices, [&](const DeviceInfo& device) {
    json.key("name"), json.string(fmt::format("cuda:{}", device.number));
    json.key("model"), json.string(device.name);
    json.key("compute_capability"), json.string(capability(device));
    json.key("memory_bytes"), json.number(device.memory_bytes);
  });
  json.key("devices_problem"), json.string_or_null(system.problem);
  json.key("cuda_driver"), json.string_or_null(version_or_empty(system.driver));
  json.key("cuda_runtime"), json.string_or_null(version_or_empty(system.runtime));
  json.key("nccl"), json.string_or_null(system.nccl);
}

void print_env_json(Session& session, const Launch& launch, const std::vector<std::string>& backends,
                    const DeviceSystem& system) {
  JsonWriter json(session.out);
  json.document("shardctl.env/1", [&] {
    json.key("version"), json.string(own_version());
    json.key("launcher"), json.string(launcher_name(launch.launcher));
    json.key("rank"), json.number(launch.rank);
    json.key("world_size"), json.number(launch.size);
    json.key("local_rank"), json.number(launch.local_rank);
    json.key("local_world_size"), json.number(launch.local_size);
    json.key("rendezvous"), json.string_or_null(rendezvous(launch));
    json.key("cpus"), json.number(usable_processors());
    write_devices(json, system);
    write_texts(json, "plugins", backends);
    json.key("seccomp"), json.boolean(has_call_filters());
    write_libraries(json);
  });
}

}  // namespace

int run_help(Session& session, const Request& request) {
  const std::string text = help_text(request.verb, request.all_options);
  if (!session.common.json) {
    TextSink(session.out).lines(text);
    return 0;
  }
  JsonWriter json(session.out);
  json.document("shardctl.help/1", [&] {
    json.key("verb"), json.string_or_null(request.verb == nullptr ? std::string_view() : request.verb->name);
    json.key("text"), json.string(text);
  });
  return 0;
}

void check_completion(const Session&, Request& request) {
  const std::vector<std::string_view> shells = shell_names();
  if (std::ranges::find(shells, request.shell) != shells.end()) return;
  const std::string known = fmt::format("{}", fmt::join(shells, ", "));
  if (request.shell.empty()) throw usage("completion needs the name of a shell").hint("give one of " + known);
  throw usage(fmt::format("completion: no script for '{}'", request.shell)).expected(known).found(request.shell);
}

int run_completion(Session& session, const Request& request) {
  const std::string script = completion_script(request.shell);
  if (!session.common.json) {
    session.out << script;
    return 0;
  }
  JsonWriter json(session.out);
  json.document("shardctl.completion/1", [&] {
    json.key("shell"), json.string(request.shell);
    json.key("script"), json.string(script);
  });
  return 0;
}

int run_version_line(Session& session) {
  if (session.common.json) {
    print_version_json(session);
  } else {
    TextSink(session.out).line("shardctl " + own_version());
  }
  return 0;
}

int run_version(Session& session, const Request&) {
  run_version_line(session);
  if (session.common.json) return 0;
  TextSink sink(session.out);
  sink.line(fmt::format("{:<15}{}", "compiler", compiler()));
  sink.line(fmt::format("{:<15}{}", "formats", fmt::join(format_names(), ", ")));
  for (const auto& [name, version] : library_versions()) sink.line(fmt::format("{:<15}{}", name, version));
  return 0;
}

int run_env(Session& session, const Request& request) {
  const Launch launch = launch_of(session, request.run);
  const std::vector<std::string> backends = backends_here();
  const DeviceSystem system = describe_devices();
  if (session.common.json) {
    print_env_json(session, launch, backends, system);
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
  line("cpus", std::to_string(usable_processors()));
  const auto or_none = [](const std::string& text) { return text.empty() ? std::string("none") : text; };
  if (system.devices.empty()) line("devices", "none: " + system.problem);
  for (const DeviceInfo& device : system.devices) {
    line("devices", fmt::format("cuda:{}: {}, compute capability {}, {}", device.number, device.name,
                                capability(device), human_bytes(device.memory_bytes)));
  }
  line("cuda driver", or_none(version_or_empty(system.driver)));
  line("cuda runtime", or_none(version_or_empty(system.runtime)));
  line("nccl", or_none(system.nccl));
  line("seccomp", has_call_filters() ? "yes" : "no, so HDF5 files cannot be read: their parser needs a sandbox");
  line("plug-ins", backends.empty() ? "none" : fmt::format("{}", fmt::join(backends, ", ")));
  for (const auto& [name, version] : library_versions()) line(name, version);
  return 0;
}

}  // namespace shard::app
