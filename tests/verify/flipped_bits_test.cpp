// One flipped bit anywhere in a file with checksums is a finding: zips of torch.save and dcp's items, and all files of
// a manifest, including the manifest.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

#include "libshard/core/digest.h"
#include "tests/verify/verify_world.h"

namespace shard::app {
namespace {

/// A checkpoint and its files that carry checksums.
struct Case {
  const char* name;
  std::string source;
  std::vector<std::string> files;
};

int flips() {
  const char* wanted = std::getenv("SHARD_FLIPS");
  return wanted == nullptr ? 300 : std::atoi(wanted);
}

class FlippedBits : public ::testing::Test {
 protected:
  VerifyWorld world;

  /// Flips bits one at a time, each at a random place of all files together.
  void expect_findings(const Case& each, int count = flips()) {
    const auto before = world.verify({each.source, "-j", "1"});
    ASSERT_EQ(world.code, 0) << each.name << ": " << before;
    std::vector<std::string> contents;
    std::size_t total = 0;
    for (const std::string& file : each.files) total += contents.emplace_back(world.content(file)).size();
    std::mt19937_64 random(16);
    int missed = 0;
    for (int i = 0; i < count; ++i) {
      std::size_t at = std::uniform_int_distribution<std::size_t>(0, total - 1)(random), file = 0;
      while (at >= contents[file].size()) at -= contents[file++].size();
      const int bit = static_cast<int>(random() % 8);
      world.flip(each.files[file], at, bit);
      const int code = world.run({"verify", each.source, "-j", "1", "-q"});
      if (code != 1 && code != 3 && code != 4 && code != 8) {
        ++missed;
        ADD_FAILURE() << each.name << ": " << each.files[file] << " byte " << at << " bit " << bit << ": exit " << code
                      << "\n"
                      << world.out << world.err;
      }
      world.put(each.files[file], contents[file]);
    }
    std::printf("%s: %d of %d flips found\n", each.name, count - missed, count);
  }

  std::vector<std::string> files_in(const std::string& folder, const std::string& suffix) const {
    std::vector<std::string> found;
    for (const std::string& path : world.state->paths()) {
      const bool is_wanted = path.starts_with(folder + "/") && path.ends_with(suffix);
      if (is_wanted && world.fs->status(path).kind == FileKind::kFile) found.push_back(path);
    }
    return found;
  }
};

TEST_F(FlippedBits, OfTorchSaveAreFound) {
  for (const char* version : {"1.13.1", "2.11.0", "2.15.0"}) {
    world.load(std::string("golden/") + version + "/plain.pt", "/s.pt");
    expect_findings({version, "/s.pt", {"/s.pt"}});
  }
}

TEST_F(FlippedBits, OfOurOwnTorchFileAreFound) {
  world.put("/m.safetensors", small_model());
  ASSERT_EQ(world.run({"convert", "/m.safetensors", "-o", "/s.pt", "-q"}), 0) << world.err;
  expect_findings({"ours", "/s.pt", {"/s.pt"}});
}

TEST_F(FlippedBits, OfItemsOfDcpAreFound) {
  world.put("/m.safetensors", small_model());
  ASSERT_EQ(world.run({"split", "/m.safetensors", "-o", "/d", "--ranks", "2", "-q"}), 0) << world.err;
  expect_findings({"dcp", "/d", files_in("/d", ".distcp")});
}

TEST_F(FlippedBits, OfTorchsOwnItemsAreFound) {
  for (const char* name : {"1.13.1/dcp_plain_r2", "2.11.0/dcp_dtensor_r2", "2.15.0/dcp_training_r2"}) {
    world.load(std::string("golden/") + name, "/t");
    expect_findings({name, "/t", files_in("/t", ".distcp")});
    world.fs->remove_all("/t");
  }
}

TEST_F(FlippedBits, OfEveryFileOfAManifestAreFound) {
  world.put("/m.safetensors", small_model());
  for (const char* format : {"safetensors", "torch", "dcp", "dcp-hf", "torch-ranks"}) {
    const std::string to = std::string("/") + format;
    ASSERT_EQ(world.run({"convert", "/m.safetensors", "-o", to, "--to", format, "--checksum", "xxh3", "-q"}), 0)
        << world.err;
    expect_findings({format, to, files_in(to, "")});
  }
}

TEST_F(FlippedBits, OfSavesOfFrameworksWithAManifestAreFound) {
  world.load("deepspeed/stage2_tied", "/deepspeed");
  world.load("megatron/dense_tp2", "/megatron");
  const std::vector<std::vector<std::string>> lines{
      {"reshard", "/deepspeed", "-o", "/d", "--ranks", "3", "--checksum", "xxh3", "-q"},
      {"convert", "/deepspeed", "-o", "/u", "--to", "deepspeed-universal", "--checksum", "xxh3", "-q"},
      {"convert", "/megatron", "-o", "/m", "--to", "megatron-dist", "--checksum", "xxh3", "-q"}};
  for (const std::vector<std::string>& line : lines) {
    ASSERT_EQ(world.run(line), 0) << world.err;
    expect_findings({line[1].c_str(), line[3], files_in(line[3], "")});
  }
}

TEST_F(FlippedBits, OfFilesThatMegatronsOwnHashesAreOfAreFound) {
  world.load("megatron/dense_tp2/iter_0000007", "/m");
  nlohmann::json hashes;
  const std::vector<std::string> files = files_in("/m", "");
  for (const std::string& file : files) {
    Hasher hasher(HashAlgorithm::kSha256);
    hasher.update(world.content(file));
    hashes[file.substr(3)] = hasher.finish_hex();
  }
  world.put("/m/integrity.json", nlohmann::json{{"algorithm", "sha256"}, {"files", hashes}}.dump());
  expect_findings({"integrity.json", "/m", files});
}

TEST_F(FlippedBits, OfHdf5WithAManifestAreFound) {
  world.put("/m.safetensors", small_model());
  const int code = world.run({"convert", "/m.safetensors", "-o", "/h", "--to", "hdf5", "--checksum", "xxh3", "-q"});
  if (code == 8) GTEST_SKIP() << "without the plug-in for HDF5";
  ASSERT_EQ(code, 0) << world.err;
  expect_findings({"hdf5", "/h", files_in("/h", "")}, flips() / 20);  // Each starts a process.
}

TEST_F(FlippedBits, OfASingleFileWithAManifestBesideItAreFound) {
  world.put("/m.safetensors", small_model());
  ASSERT_EQ(world.run({"convert", "/m.safetensors", "-o", "/o.safetensors", "--checksum", "sha256", "-q"}), 0);
  expect_findings({"single", "/o.safetensors", {"/o.safetensors", "/o.safetensors.manifest.json"}});
}

}  // namespace
}  // namespace shard::app
