#include "libshard/ranks/open_group.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>

#include "libshard/core/error.h"
#include "libshard/core/shared_library.h"

namespace shard {

namespace {

struct Plugin {
  std::string_view backend, library, needs;
};
constexpr std::array kPlugins{
    Plugin{"mpi", "libshard_mpi.so", "Open MPI (libopenmpi3)"},
    Plugin{"gloo", "libshard_torch.so", "LibTorch " SHARD_LIBTORCH " (pip install torch==" SHARD_LIBTORCH ")"},
    Plugin{"nccl", "libshard_nccl.so",
           "LibTorch " SHARD_LIBTORCH " with CUDA and a GPU (pip install torch==" SHARD_LIBTORCH ")"},
};

void* entry_of(const Plugin& plugin, const char* entry) {
  const SharedLibrary library(plugin_path(kPlugins.data(), plugin.library));
  if (library.is_open()) return library.entry(entry);
  const bool is_there = ::access(library.path().c_str(), F_OK) == 0;
  throw Error(ErrorCode::kUnsupported, fmt::format("backend '{}' is not available", plugin.backend))
      .because(library.why())
      .hint(is_there ? fmt::format("install {}; the plug-in is {}", plugin.needs, plugin.library)
                     : fmt::format("put the plug-in {} there, and install {}", plugin.library, plugin.needs));
}

MakeGroup load(const Plugin& plugin) { return reinterpret_cast<MakeGroup>(entry_of(plugin, kPluginEntry)); }

const Plugin& plugin_of(std::string_view backend) {
  for (const Plugin& plugin : kPlugins) {
    if (plugin.backend == backend) return plugin;
  }
  throw Error(ErrorCode::kInvalidArgument, fmt::format("unknown backend '{}'", backend))
      .expected("auto, gloo, nccl or mpi");
}

MakeGroup load_auto(const Launch& launch) {
  if (launch.launcher == Launcher::kOpenMpi) {
    try {
      return load(plugin_of("mpi"));
    } catch (const Error&) {
      return load(plugin_of("gloo"));  // mpirun without our MPI plug-in: ranks meet over TCP.
    }
  }
  return load(plugin_of("gloo"));
}

}  // namespace

std::vector<std::string> backends_here() {
  std::vector<std::string> found;
  for (const Plugin& plugin : kPlugins) {
    try {
      load(plugin);
      found.emplace_back(plugin.backend);
    } catch (const Error&) {
      continue;  // Not available: that is the answer.
    }
  }
  return found;
}

void* plugin_entry(const std::string& backend, const char* entry) { return entry_of(plugin_of(backend), entry); }

std::unique_ptr<Group> open_group(const GroupRequest& request, const std::string& backend) {
  const MakeGroup make = backend == "auto" ? load_auto(request.launch) : load(plugin_of(backend));
  const Bytes bytes = to_bytes(request);
  PlainGroup made{};
  throw_error([&](const ErrorSink* errors) { return make({bytes.data(), bytes.size()}, &made, errors); });
  return from_plain(made);
}

}  // namespace shard
