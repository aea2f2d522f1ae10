// Duties of every format for verify: intact checkpoints have no findings, truncated and lost files have some. A
// registered format is tested.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "formats/registry.h"
#include "tests/verify/verify_world.h"

namespace shard::app {
namespace {

/// Tensors of several dtypes and shapes, an empty one and one of rank 0.
std::string model() {
  return safetensors(R"({"a.weight":{"dtype":"F32","shape":[6,4],"data_offsets":[0,96]},)"
                     R"("b":{"dtype":"U8","shape":[10],"data_offsets":[96,106]},)"
                     R"("c":{"dtype":"F16","shape":[],"data_offsets":[106,108]},)"
                     R"("d":{"dtype":"I64","shape":[0,3],"data_offsets":[108,108]}})",
                     std::string(50, 'p') + std::string(58, 'q'));
}

/// Ways to write a format, without unsupported ones.
const std::vector<std::vector<std::string>> kLayouts{
    {},
    {"--shards", "2"},
    {"--ranks", "2"},
    {"--mesh", "dp=2,tp=2", "--place", "**=R,S(0)"},
};

class VerifyFormats : public ::testing::TestWithParam<std::string> {
 protected:
  /// Calls `check(world, files)` for each layout of the format, with the checkpoint in /c.
  template <class Check>
  void for_each_layout(const Check& check) {
    int written = 0;
    for (const std::vector<std::string>& layout : kLayouts) {
      VerifyWorld world;
      world.put("/m.safetensors", model());
      std::vector<std::string> line{"convert", "/m.safetensors", "-o", "/c", "--to", GetParam(), "-q"};
      line.insert(line.end(), layout.begin(), layout.end());
      if (world.run(line) != 0) continue;
      ++written;
      std::vector<std::string> files;
      for (const std::string& path : world.state->paths()) {
        if (path.starts_with("/c/") && path.find(".json") == std::string::npos) files.push_back(path);
      }
      check(world, files);
    }
    EXPECT_GT(written, 0);
  }
};

TEST_P(VerifyFormats, WholeCheckpointsHaveNoErrors) {
  for_each_layout([](VerifyWorld& world, const std::vector<std::string>&) {
    const auto found = world.verify({"/c"});
    EXPECT_EQ(world.code, 0) << found;
    EXPECT_TRUE(found.at("ok")) << found;
    EXPECT_EQ(found.at("checked").at("tensors"), 4);
  });
}

TEST_P(VerifyFormats, AManifestChangesNoOtherFile) {
  for (const std::vector<std::string>& layout : kLayouts) {
    VerifyWorld world;
    world.put("/m.safetensors", model());
    std::vector<std::string> line{"convert", "/m.safetensors", "-o", "/c", "--to", GetParam(), "-q"};
    line.insert(line.end(), layout.begin(), layout.end());
    if (world.run(line) != 0) continue;
    line[3] = "/with";
    line.insert(line.end(), {"--checksum", "xxh3"});
    ASSERT_EQ(world.run(line), 0) << world.err;
    std::size_t files = 0;
    for (const std::string& path : world.state->paths()) {
      if (!path.starts_with("/c/")) continue;
      EXPECT_EQ(world.content("/with" + path.substr(2)), world.content(path)) << path;
      ++files;
    }
    const auto found = world.verify({"/with"});
    EXPECT_EQ(found.at("findings").size(), world.verify({"/c"}).at("findings").size()) << found;
    EXPECT_GE(found.at("checked").at("manifest"), files);
  }
}

TEST_P(VerifyFormats, RanksAndMemoryFindTheSame) {
  for_each_layout([](VerifyWorld& world, const std::vector<std::string>& files) {
    world.flip(files.back(), world.content(files.back()).size() / 2, 2);
    const auto alone = world.verify({"/c"});
    EXPECT_EQ(world.verify({"/c", "--local-ranks", "3", "-j", "1"}), alone);
    EXPECT_EQ(world.verify({"/c", "--max-memory", "1MiB", "-j", "4"}), alone);
  });
}

TEST_P(VerifyFormats, AFileThatWasCutIsFound) {
  for_each_layout([](VerifyWorld& world, const std::vector<std::string>& files) {
    for (const std::string& file : files) {
      const std::string whole = world.content(file);
      for (const std::size_t bytes : {std::size_t{0}, whole.size() / 2, whole.size() - 1}) {
        world.cut(file, bytes);
        EXPECT_NE(world.run({"verify", "/c", "-q"}), 0) << file << " cut to " << bytes;
      }
      world.put(file, whole);
    }
  });
}

TEST_P(VerifyFormats, AFileThatIsLostIsFoundOfAManifest) {
  for_each_layout([](VerifyWorld& world, const std::vector<std::string>& files) {
    if (files.size() < 2) return;
    ASSERT_EQ(
        world.run({"convert", "/m.safetensors", "-o", "/c", "--force", "--to", GetParam(), "-q", "--checksum", "xxh3"}),
        0);
    for (const std::string& path : world.state->paths()) {
      const bool is_data = path.starts_with("/c/") && path.find("manifest") == std::string::npos;
      if (!is_data) continue;
      const std::string whole = world.content(path);
      world.fs->remove_all(path);
      const int code = world.run({"verify", "/c", "-q"});
      EXPECT_THAT(code, ::testing::AnyOf(1, 3, 4)) << path << world.err;
      world.put(path, whole);
    }
  });
}

std::string name_of(const ::testing::TestParamInfo<std::string>& format) {
  std::string name = format.param;
  std::ranges::replace(name, '-', '_');
  return name;
}
/// Formats that any tensors can be written in: some are read only, others need a model map.
std::vector<std::string> written_formats() {
  std::vector<std::string> names = format_names();
  std::erase_if(names, [](const std::string& name) {
    const Format& format = format_named(name);
    return format.make_writer == nullptr || format.traits.mapped_ranks;
  });
  return names;
}

INSTANTIATE_TEST_SUITE_P(All, VerifyFormats, ::testing::ValuesIn(written_formats()), name_of);

/// Golden checkpoints that torch refuses too, or that this build cannot read.
bool is_readable(const std::filesystem::path& path) {
  const std::string name = path.filename().string();
  return name != "hub" && name != "expected.json";
}

TEST(VerifyGolden, NoCheckpointOfTorchHasErrors) {
  int checked = 0;
  for (const auto& version : std::filesystem::directory_iterator(std::string(SHARD_TEST_DATA) + "/golden")) {
    if (!version.is_directory()) continue;
    for (const auto& entry : std::filesystem::directory_iterator(version)) {
      if (!is_readable(entry.path())) continue;
      VerifyWorld world;
      const std::string name = version.path().filename().string() + "/" + entry.path().filename().string();
      const std::string to = entry.is_directory() ? "/c" : "/c.pt";
      world.load("golden/" + name, to);
      const int opens = world.run({"digest", to, "-q"});
      if (opens != 0) continue;
      const auto found = world.verify({to});
      EXPECT_EQ(world.code, 0) << name << ": " << found.at("findings");
      ++checked;
    }
  }
  EXPECT_GT(checked, 100);
}

}  // namespace
}  // namespace shard::app
