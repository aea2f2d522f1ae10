// Manifests: their content, their commit with the output, and the findings of verify with them.
#include "libshard/manifest/manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "libshard/manifest/integrity.h"
#include "libshard/manifest/read_json.h"
#include "tests/support/expect_error.h"
#include "tests/verify/verify_world.h"

namespace shard::app {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

static_assert(block_count(INT64_MAX) == INT64_MAX / kManifestBlock + 1, "any size that a manifest may state");

/// A model of several blocks: one tensor of 9 MiB and one of 1 KiB.
std::string large_model() {
  std::string data(9 << 20, 'x');
  for (std::size_t i = 0; i < data.size(); i += 997) data[i] = static_cast<char>(i % 251);
  return safetensors(R"({"a":{"dtype":"U8","shape":[9437184],"data_offsets":[0,9437184]},)"
                     R"("b":{"dtype":"U8","shape":[1024],"data_offsets":[9437184,9438208]}})",
                     data + std::string(1024, 'b'));
}

class Manifests : public ::testing::Test {
 protected:
  VerifyWorld world;

  void SetUp() override { world.put("/m.safetensors", large_model()); }
  void write(std::vector<std::string> arguments, const std::string& checksum = "xxh3") {
    arguments.insert(arguments.end(), {"--checksum", checksum, "-q"});
    ASSERT_EQ(world.run(arguments), 0) << world.err;
  }
};

TEST(Integrity, AHashThatIsNoneIsShown) {
  const Error error =
      test::error_of([] { parse_integrity(R"({"algorithm": "sha256", "files": {"a": "xyz"}})", "integrity.json"); });
  EXPECT_EQ(error.expected(), "64 hexadecimal digits");
  EXPECT_EQ(error.found(), "\"xyz\"");
}

TEST_F(Manifests, SayNothingOfPathsAndHosts) {
  world.put("/secret/place/m.safetensors", small_model());
  world.put("/out/keep", "");
  write({"convert", "/secret/place/m.safetensors", "-o", "/out/d", "--to", "dcp"});
  const std::string text = world.content("/out/d/shardctl.manifest.json");
  EXPECT_THAT(text, Not(HasSubstr("secret")));
  EXPECT_THAT(text, Not(HasSubstr("/out")));
  const auto document = nlohmann::json::parse(text);
  EXPECT_EQ(document.at("schema"), "shardctl.manifest/1");
  EXPECT_EQ(document.at("source").at("files")[0].at("path"), "m.safetensors");
}

TEST_F(Manifests, AreTheSameForAnyNumberOfRanksAndThreads) {
  for (const char* folder : {"/1/keep", "/2/keep", "/5/keep"}) world.put(folder, "");
  write({"split", "/m.safetensors", "-o", "/1/d", "--ranks", "3", "-j", "1"});
  const std::string expected = world.content("/1/d/shardctl.manifest.json");
  for (const char* ranks : {"2", "5"}) {
    const std::string to = std::string("/") + ranks + "/d";
    write({"split", "/m.safetensors", "-o", to, "--ranks", "3", "-j", "3", "--local-ranks", ranks});
    EXPECT_EQ(world.content(to + "/shardctl.manifest.json"), expected);
  }
}

TEST_F(Manifests, HoldTheHashOfEachBlock) {
  write({"convert", "/m.safetensors", "-o", "/o.safetensors", "-j", "3"}, "sha256");
  const std::string file = world.content("/o.safetensors");
  const Manifest manifest = parse_manifest(world.content("/o.safetensors.manifest.json"), "m");
  ASSERT_EQ(manifest.files.size(), 1U);
  EXPECT_EQ(manifest.files[0].bytes, std::ssize(file));
  for (std::int64_t block = 0; block < block_count(std::ssize(file)); ++block) {
    Hasher hasher(HashAlgorithm::kSha256);
    hasher.update(std::string_view(file).substr(static_cast<std::size_t>(block * kManifestBlock), kManifestBlock));
    EXPECT_EQ(manifest.files[0].block(block, manifest.algorithm), hasher.finish_hex()) << block;
  }
}

TEST_F(Manifests, DamageIsNamedToFileAndBlock) {
  write({"convert", "/m.safetensors", "-o", "/d", "--to", "safetensors", "--shards", "2"});
  ASSERT_EQ(world.verify({"/d"}).at("ok"), true) << world.out;
  world.flip("/d/model-00001-of-00002.safetensors", kManifestBlock + 12345, 3);
  const auto found = world.verify({"/d"});
  EXPECT_EQ(world.code, 1);
  ASSERT_EQ(found.at("findings").size(), 1U) << found;
  EXPECT_EQ(found.at("findings")[0].at("kind"), "hash_mismatch");
  EXPECT_EQ(found.at("findings")[0].at("file"), "model-00001-of-00002.safetensors");
  EXPECT_THAT(found.at("findings")[0].at("detail"),
              HasSubstr("block 1 differs from the manifest: bytes [4194304, 8388608)"));
}

TEST_F(Manifests, AgainstANamedOneACopyElsewhereIsCompared) {
  write({"convert", "/m.safetensors", "-o", "/o.safetensors"});
  world.put("/copy.safetensors", world.content("/o.safetensors"));
  const std::vector<std::string> line{"/copy.safetensors", "--against", "/o.safetensors.manifest.json"};
  EXPECT_EQ(world.verify(line).at("checked").at("manifest"), 3);
  EXPECT_EQ(world.code, 0);
  world.flip("/copy.safetensors", 9 << 20, 0);
  const auto found = world.verify(line);
  EXPECT_THAT(VerifyWorld::kinds(found), ElementsAre("error hash_mismatch"));
  EXPECT_EQ(found.at("findings")[0].at("file"), "copy.safetensors");
}

TEST_F(Manifests, MissingExtraAndCutFilesAreFound) {
  write({"split", "/m.safetensors", "-o", "/d", "--shards", "2"});
  world.put("/d/notes.txt", "mine");
  EXPECT_THAT(VerifyWorld::kinds(world.verify({"/d"})), ElementsAre("warning extra_file"));
  EXPECT_EQ(world.code, 0);
  world.cut("/d/model-00001-of-00002.safetensors", 5 << 20);
  world.fs->remove_all("/d/model-00002-of-00002.safetensors");
  const auto kinds = VerifyWorld::kinds(world.verify({"/d"}));
  EXPECT_EQ(world.code, 1);
  EXPECT_THAT(kinds, Contains("error truncated"));
  EXPECT_THAT(kinds, Contains("error missing_file"));
  EXPECT_THAT(kinds, Contains("error hash_mismatch"));
}

TEST_F(Manifests, AChangedManifestIsNotBelieved) {
  write({"convert", "/m.safetensors", "-o", "/o.safetensors"});
  const std::string text = world.content("/o.safetensors.manifest.json");
  for (std::size_t at = 0; at < text.size(); at += 7) {
    std::string changed = text;
    changed[at] = static_cast<char>(changed[at] ^ 1);
    EXPECT_THROW(parse_manifest(changed, "m"), Error) << at;
  }
  EXPECT_THROW(parse_manifest(text + " ", "m"), Error);
}

TEST_F(Manifests, ThatNameAFileTwiceAreRefused) {
  write({"split", "/m.safetensors", "-o", "/d", "--shards", "2"});
  Manifest manifest = parse_manifest(world.content("/d/shardctl.manifest.json"), "m");
  manifest.files.push_back(manifest.files.front());
  test::expect_error(ErrorCode::kCorruption, "twice", [&] { parse_manifest(manifest_text(manifest), "m"); });
}

/// The finding must not depend on whether the file exists.
TEST_F(Manifests, NamesThatLeadOutOfTheFolderAreNotLookedUp) {
  write({"split", "/m.safetensors", "-o", "/d", "--shards", "2"});
  Manifest manifest = parse_manifest(world.content("/d/shardctl.manifest.json"), "m");
  world.put("/secret", "secret");
  std::vector<std::string> kinds;
  for (const char* path : {"../secret", "../absent"}) {
    manifest.files.front().path = path;
    world.put("/d/shardctl.manifest.json", manifest_text(manifest));
    const auto found = world.verify({"/d"});
    for (const auto& finding : found.at("findings")) {
      if (finding.at("file") == path) kinds.push_back(finding.at("kind").get<std::string>());
    }
  }
  ASSERT_EQ(kinds.size(), 2U);
  EXPECT_EQ(kinds[0], kinds[1]);
}

/// A manifest of empty files has the highest density of honest ones.
TEST_F(Manifests, OfTinyValuesAreRefusedAndOfManyFilesAreNot) {
  Manifest manifest;
  manifest.layout = manifest.options = std::string(32, '0');
  for (int i = 0; i < 5000; ++i) {
    manifest.files.push_back({std::to_string(i), 0, ""});
    manifest.source.push_back({std::to_string(i), 0, 0, std::string(32, '0')});
  }
  EXPECT_EQ(parse_manifest(manifest_text(manifest), "m").files.size(), 5000U);
  manifest.tool = std::string(100'000, ',');
  EXPECT_EQ(parse_manifest(manifest_text(manifest), "m").tool, manifest.tool);
  for (const char* tiny : {"0,", "[],", "{},"}) {
    std::string many;
    while (many.size() < 200'000) many += tiny;
    const std::string text = "{\"files\": [" + many + "0]}";
    test::expect_error(ErrorCode::kCorruption, "out of proportion", [&] { read_json(text, "manifest", 8); });
  }
  const char* repeated = R"({"a": 1, "a": 2})";
  test::expect_error(ErrorCode::kCorruption, "appears twice", [&] { read_json(repeated, "manifest", 8); });
  test::expect_error(ErrorCode::kCorruption, "nests deeper", [] { read_json("[[[]]]", "manifest", 2); });
}

TEST_F(Manifests, OfSomeFilesSayNothingOfTheOthers) {
  write({"split", "/m.safetensors", "-o", "/d", "--shards", "2"});
  const std::string front = "/d/model-0000", back = "-of-00002.safetensors";
  const auto found = world.verify({front + "1" + back, front + "2" + back, "--against", "/d/shardctl.manifest.json"});
  EXPECT_EQ(world.code, 0);
  EXPECT_EQ(found.at("findings").size(), 0U) << found;
}

TEST_F(Manifests, OfASingleFileAreCommittedWithItAndReplacedWithIt) {
  write({"convert", "/m.safetensors", "-o", "/o.safetensors"});
  world.put("/n.safetensors", small_model());
  ASSERT_EQ(world.run({"convert", "/n.safetensors", "-o", "/o.safetensors", "--force", "-q"}), 0) << world.err;
  EXPECT_THAT(world.state->paths(), Not(Contains("/o.safetensors.manifest.json")));
  write({"convert", "/m.safetensors", "-o", "/o.safetensors", "--force"});
  EXPECT_EQ(world.verify({"/o.safetensors"}).at("ok"), true) << world.out;
  world.fs->remove_all("/o.safetensors");
  EXPECT_EQ(world.run({"convert", "/m.safetensors", "-o", "/o.safetensors", "-q"}), 5) << "another's manifest is there";
}

TEST_F(Manifests, EachFailingCallLeavesFileAndManifestAsTheyWere) {
  for (const bool has_old : {false, true}) {
    int code = 1;
    for (std::int64_t call = 0; code != 0; ++call) {
      ASSERT_LT(call, 500);
      VerifyWorld each;
      each.put("/in/m.safetensors", small_model());
      each.put("/in/n.safetensors", small_model("0123456789"));
      std::vector<std::string> line{"convert", "/in/m.safetensors", "-o", "/out/o.pt", "--checksum", "xxh3", "-q", "-j",
                                    "1"};
      each.put("/out/keep", "");
      if (has_old) {
        ASSERT_EQ(each.run({"convert", "/in/n.safetensors", "-o", "/out/o.pt", "--checksum", "xxh3", "-q"}), 0);
        line.emplace_back("--force");
      }
      const std::vector<std::string> before = each.state->paths();
      const std::string old = has_old ? each.content("/out/o.pt.manifest.json") : "";
      each.state->fail_at(each.state->calls() + call);
      code = each.run(line);
      each.state->fail_at(-1);
      if (code == 0) break;
      EXPECT_THAT(code, ::testing::AnyOf(3, 6)) << call << each.err;
      std::vector<std::string> after;
      for (const std::string& path : each.state->paths()) {
        if (path.find(".shardctl-") == std::string::npos) after.push_back(path);
      }
      EXPECT_EQ(after, before) << "call " << call;
      if (has_old) {
        EXPECT_EQ(each.content("/out/o.pt.manifest.json"), old) << "call " << call;
      }
    }
  }
}

}  // namespace
}  // namespace shard::app
