// Runs every writing verb, and verbs that write a page, once for each call to the disk, with that call failing: the
// exit code shows the failure and DST stays as it was.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/apps/world.h"

namespace shard::app {
namespace {

struct Verb {
  const char* name;
  std::vector<std::string> arguments;  ///< All but DST.
  std::string destination;
  std::string option = "-o";  ///< Whether a call names DST.
};

std::vector<Verb> verbs() {
  return {{"gather", {"gather", "/in/ckpt"}, "/out/new.pt"},
          {"split", {"split", "/in/model.safetensors", "--ranks", "2"}, "/out/new"},
          {"split_into_files", {"split", "/in/model.safetensors", "--shards", "2"}, "/out/new"},
          {"reshard", {"reshard", "/in/ckpt", "--ranks", "3", "--dim", "1"}, "/out/new"},
          {"convert", {"convert", "/in/ckpt"}, "/out/new.safetensors"},
          {"export", {"export", "/in/model.safetensors", "--hf-ref", "/in/hub"}, "/out/new"},
          {"inspect", {"inspect", "/in/ckpt"}, "/out/new.html", "--html"},
          {"diff", {"diff", "/in/ckpt", "/in/model.safetensors"}, "/out/new.html", "--html"}};
}

/// A world with a safetensors file, a dcp folder of the same content, a model's config, and optionally an old DST.
std::unique_ptr<World> make_world(const Verb& verb, bool with_old) {
  auto world = std::make_unique<World>();
  world->put("/in/model.safetensors", small_model());
  world->put("/in/hub/config.json", R"({"tie_word_embeddings": true})");
  world->put("/in/hub/tokenizer.json", "{}");
  world->put("/out/keep", "");
  EXPECT_EQ(world->run({"split", "/in/model.safetensors", "-o", "/in/ckpt", "--ranks", "2", "-q"}), 0) << world->err;
  if (with_old) world->put(verb.destination, "old");
  return world;
}

class FailingCalls : public ::testing::TestWithParam<bool> {};

TEST_P(FailingCalls, LeaveDestinationAsItWas) {
  const bool with_old = GetParam();
  for (const Verb& verb : verbs()) {
    std::vector<std::string> arguments = verb.arguments;
    arguments.insert(arguments.end(), {verb.option, verb.destination, "-j", "1", "-q"});
    if (with_old) arguments.push_back("--force");
    int failures = 0, code = 0;
    for (std::int64_t call = 0;; ++call) {
      ASSERT_LT(call, 2000) << verb.name;
      const std::unique_ptr<World> world = make_world(verb, with_old);
      const std::int64_t at = world->state->calls() + call;
      world->state->fail_at(at);
      code = world->run(arguments);
      const bool has_failed = world->state->calls() > at;
      world->state->fail_at(-1);
      EXPECT_EQ(world->state->open_files(), 0) << verb.name << " call " << call;
      if (!has_failed) break;
      if (code == 0) {  // A search for another checkpoint failed, which the verb does not need.
        EXPECT_NE(world->fs->status(verb.destination).kind, FileKind::kAbsent) << verb.name << " call " << call;
        continue;
      }
      ++failures;
      EXPECT_THAT(code, ::testing::AnyOf(3, 6)) << verb.name << " call " << call << ": " << world->err;
      EXPECT_THAT(world->err, ::testing::HasSubstr("shardctl: error:"));
      const FileStatus status = world->fs->status(verb.destination);
      if (with_old) {
        EXPECT_EQ(world->state->content(verb.destination).size(), 3U) << verb.name << " call " << call;
      } else {
        EXPECT_EQ(status.kind, FileKind::kAbsent) << verb.name << " call " << call;
      }
    }
    EXPECT_EQ(code, 0) << verb.name;
    EXPECT_GT(failures, 15) << verb.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Destination, FailingCalls, ::testing::Bool(),
                         [](const auto& each) { return each.param ? std::string("Old") : std::string("Absent"); });

}  // namespace
}  // namespace shard::app
