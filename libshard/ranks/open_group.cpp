#include "libshard/ranks/open_group.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <ranges>
#include <string_view>

#include "libshard/core/error.h"
#include "libshard/core/shared_library.h"

namespace shard {

namespace {

namespace fs = std::filesystem;

/// The prefixes of environments, with repetitions.
std::vector<fs::path> prefixes(const std::string& program_folder, const Environment& environment) {
  std::vector<fs::path> found{fs::path(program_folder).parent_path()};
  for (const char* const name : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
    if (const auto prefix = environment(name)) found.emplace_back(*prefix);
  }
  const std::string path = environment("PATH").value_or("");
  for (const auto part : std::views::split(path, ':')) {
    const fs::path folder(part.begin(), part.end());
    if (folder.filename() == "bin") found.push_back(folder.parent_path());
  }
  return found;
}

/// The entries of `folder` whose names begin with `begin`, sorted. Empty if it cannot be read.
std::vector<fs::path> entries(const fs::path& folder, std::string_view begin) {
  std::error_code failure;
  std::vector<fs::path> found;
  for (fs::directory_iterator next(folder, failure), end; !failure && next != end; next.increment(failure)) {
    if (next->path().filename().string().starts_with(begin)) found.push_back(next->path());
  }
  std::ranges::sort(found);
  return found;
}

/// The folders of Python packages in environments. Debian's own Python uses a different name for it.
std::vector<fs::path> package_folders(const std::vector<fs::path>& prefixes) {
  std::vector<fs::path> found;
  for (const fs::path& prefix : prefixes) {
    if (!prefix.is_absolute()) continue;
    for (const fs::path& python : entries(prefix / "lib", "python3")) {
      found.push_back(python / "site-packages");
      found.push_back(python / "dist-packages");
    }
  }
  return found;
}

/// "2.11.0" of torch-2.11.0+cu130.dist-info.
std::string version_in(const fs::path& packages) {
  for (const fs::path& entry : entries(packages, "torch-")) {
    if (entry.extension() != ".dist-info") continue;
    const std::string full = entry.stem().string().substr(std::string_view("torch-").size());
    return full.substr(0, full.find('+'));
  }
  return {};
}

}  // namespace

std::vector<FoundLibtorch> find_libtorch(const std::string& program_folder, const Environment& environment) {
  std::vector<FoundLibtorch> found;
  for (const fs::path& packages : package_folders(prefixes(program_folder, environment))) {
    std::error_code failure;
    const std::string folder = (packages / "torch/lib").string();
    if (!fs::exists(folder + "/libtorch_cpu.so", failure)) continue;
    if (std::ranges::find(found, folder, &FoundLibtorch::folder) != found.end()) continue;
    found.push_back({folder, version_in(packages)});
  }
  return found;
}

namespace {

struct Plugin {
  std::string_view backend, library, needs;
  std::string_view torch_library{};  ///< The library of LibTorch that loads all others that the plug-in needs.
};
constexpr std::string_view kLibtorch = SHARD_LIBTORCH;
constexpr std::array kPlugins{
    Plugin{"mpi", "libshard_mpi.so", "Open MPI (libopenmpi3)"},
    Plugin{"gloo", "libshard_gloo.so", "LibTorch " SHARD_LIBTORCH " (pip install torch==" SHARD_LIBTORCH ")",
           "libtorch_cpu.so"},
    Plugin{"nccl", "libshard_nccl.so",
           "LibTorch " SHARD_LIBTORCH " with CUDA and a GPU (pip install torch==" SHARD_LIBTORCH ")",
           "libtorch_cuda.so"},
};

Error unavailable(const Plugin& plugin, const SharedLibrary& library) {
  return Error(ErrorCode::kUnsupported, fmt::format("backend '{}' is not available", plugin.backend))
      .because(library.why())
      .hint(is_file_there(library.path())
                ? fmt::format("install {}; the plug-in is {}", plugin.needs, plugin.library)
                : fmt::format("put the plug-in {} there, and install {}", plugin.library, plugin.needs));
}

/// For a plug-in for which the loader finds no LibTorch. Opens that of the first environment with the plug-in's
/// version, so that the loader uses it. \throws Error  the reason, if no environment has this version.
void open_libtorch(const Plugin& plugin, const Error& reason) {
  const std::vector<FoundLibtorch> found = find_libtorch(folder_of_code(kPlugins.data()), process_environment());
  const auto fitting = std::ranges::find(found, kLibtorch, &FoundLibtorch::version);
  if (fitting != found.end()) {
    const SharedLibrary libtorch(fmt::format("{}/{}", fitting->folder, plugin.torch_library));
    if (!libtorch.is_open()) throw Error(reason).because(libtorch.why());
    return;
  }
  if (found.empty()) throw reason;
  const auto& [folder, version] = found.front();
  throw Error(reason).because(fmt::format("its plug-in needs LibTorch {}, but {} has LibTorch {}", kLibtorch, folder,
                                          version.empty() ? "of an unknown version" : version));
}

SharedLibrary open_plugin(const Plugin& plugin) {
  const std::string path = plugin_path(kPlugins.data(), plugin.library);
  SharedLibrary library(path);
  if (library.is_open()) return library;
  const Error reason = unavailable(plugin, library);
  if (plugin.torch_library.empty() || !is_file_there(path)) throw reason;
  open_libtorch(plugin, reason);
  library = SharedLibrary(path);
  if (!library.is_open()) throw unavailable(plugin, library);
  return library;
}

MakeGroup load(const Plugin& plugin) { return reinterpret_cast<MakeGroup>(open_plugin(plugin).entry(kPluginEntry)); }

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
      return load(plugin_of("gloo"));  // mpirun without the MPI plug-in: ranks connect over TCP.
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
      continue;  // The backend is not available, which is a valid answer.
    }
  }
  return found;
}

void* plugin_entry(const std::string& backend, const char* entry) {
  return open_plugin(plugin_of(backend)).entry(entry);
}

std::unique_ptr<Group> open_group(const GroupRequest& request, const std::string& backend) {
  const MakeGroup make = backend == "auto" ? load_auto(request.launch) : load(plugin_of(backend));
  const Bytes bytes = to_bytes(request);
  CGroup made{};
  throw_error([&](const ErrorSink* errors) { return make({bytes.data(), bytes.size()}, &made, errors); });
  return from_c(made);
}

}  // namespace shard
