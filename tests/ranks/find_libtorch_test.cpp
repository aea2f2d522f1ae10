#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>

#include "libshard/ranks/open_group.h"
#include "tests/support/temp_folder.h"

namespace shard {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
namespace fs = std::filesystem;

/// Environments in a folder of the test, and the variables that name them.
class FindLibtorch : public ::testing::Test {
 protected:
  /// An environment `name` with torch; `package` is the folder that contains its version.
  void add(const std::string& name, const std::string& package, const std::string& python = "python3.11") {
    const std::string packages = name + "/lib/" + python + "/site-packages/";
    temp_.write(packages + "torch/lib/libtorch_cpu.so", "");
    temp_.write(packages + package + "/METADATA", "");
  }

  /// "NAME version" of the torch that a program in `name`'s bin finds.
  std::vector<std::string> found_from(const std::string& name) const {
    std::vector<std::string> texts;
    const Environment environment = [&](std::string_view variable) -> std::optional<std::string> {
      const auto set = variables_.find(variable);
      return set == variables_.end() ? std::nullopt : std::optional(set->second);
    };
    for (const FoundLibtorch& found : find_libtorch((root() / name / "bin").string(), environment)) {
      texts.push_back(fs::path(found.folder).lexically_relative(root()).begin()->string() + " " + found.version);
    }
    return texts;
  }

  fs::path root() const { return temp_.path(); }
  test::TempFolder temp_;
  std::map<std::string, std::string, std::less<>> variables_;
};

TEST_F(FindLibtorch, TheProgramsOwnEnvironmentComesFirstThenTheOnesThatVariablesName) {
  add("own", "torch-2.11.0.dist-info");
  add("active", "torch-2.12.1+cu130.dist-info");
  add("conda", "torch-2.10.0a1.dist-info");
  add("path", "torch-2.9.0+cpu.dist-info", "python3.13");
  variables_ = {{"VIRTUAL_ENV", root() / "active"},
                {"CONDA_PREFIX", root() / "conda"},
                {"PATH", "/nowhere/bin:" + (root() / "path/bin").string() + ":" + (root() / "own/bin").string()}};
  EXPECT_THAT(found_from("own"), ElementsAre("own 2.11.0", "active 2.12.1", "conda 2.10.0a1", "path 2.9.0"));
}

TEST_F(FindLibtorch, TheFolderIsTheOneOfTheLibraries) {
  add("own", "torch-2.11.0.dist-info");
  const auto found = find_libtorch((root() / "own/bin").string(), [](std::string_view) { return std::nullopt; });
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].folder, temp_ / "own/lib/python3.11/site-packages/torch/lib");
}

TEST_F(FindLibtorch, DebiansPythonKeepsPackagesUnderAnotherName) {
  const std::string packages = "own/lib/python3.13/dist-packages/";
  temp_.write(packages + "torch/lib/libtorch_cpu.so", "");
  temp_.write(packages + "torch-2.11.0+cpu.dist-info/METADATA", "");
  EXPECT_THAT(found_from("own"), ElementsAre("own 2.11.0"));
}

TEST_F(FindLibtorch, OtherPackagesSayNothingOfIt) {
  add("own", "torchvision-0.26.0.dist-info");
  EXPECT_THAT(found_from("own"), ElementsAre("own "));
}

TEST_F(FindLibtorch, WhereItsLibraryIsNotThereIsNone) {
  add("own", "torch-2.11.0.dist-info");
  fs::remove(temp_ / "own/lib/python3.11/site-packages/torch/lib/libtorch_cpu.so");
  variables_ = {{"VIRTUAL_ENV", "relative"}, {"PATH", "bin:" + (root() / "own").string() + "::/nowhere/bin"}};
  EXPECT_THAT(found_from("own"), IsEmpty());
  EXPECT_THAT(found_from("absent"), IsEmpty());
}

}  // namespace
}  // namespace shard
