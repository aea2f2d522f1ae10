#include "libshard/ranks/find_libtorch.h"

#include <algorithm>
#include <filesystem>
#include <ranges>
#include <string_view>

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

}  // namespace shard
