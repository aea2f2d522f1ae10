// Laws for any content and any layouts. If one is violated, the seed is printed; SHARD_SEED repeats it.
#include <gtest/gtest.h>

#include <cstdlib>

#include "libshard/io/local_disk.h"
#include "tests/support/content.h"

namespace shard {
namespace {

using testing::Content;
using testing::content_reader;
using testing::open_checkpoint;
using testing::random_content;
using testing::random_tensor;
using testing::read_content;
using testing::write_checkpoint;
using testing::WriteCheckpoint;

constexpr DType kDtypes[] = {DType::kUint8, DType::kBfloat16, DType::kFloat32, DType::kInt64, DType::kComplex64};

std::uint64_t seed() {
  const char* given = std::getenv("SHARD_SEED");
  return given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device{}();
}

/// `has_splits`: with parts that DTensors cannot have.
Layout random_layout(std::mt19937_64& random, bool has_splits = false) {
  if (random() % 2 == 0)
    return RanksLayout{static_cast<std::int64_t>(1 + random() % 6), static_cast<int>(random() % 4) - 1};
  MeshLayout layout;
  MeshLayout::Rule rule;
  rule.source = "**";
  layout.matching = match_first_rule;
  for (std::uint64_t axis = 0, axes = 1 + random() % 3; axis < axes; ++axis) {
    layout.mesh.push_back({std::string(1, static_cast<char>('a' + axis)), static_cast<std::int64_t>(1 + random() % 3)});
    Placement placement;
    placement.kind = static_cast<Placement::Kind>(random() % 3);
    placement.dim = static_cast<int>(random() % 3);
    placement.split_factor = static_cast<std::int64_t>(1 + random() % 3);
    if (has_splits && placement.kind == Placement::kShard && random() % 2 == 0) placement.split = CutRule::kFirstExtra;
    rule.placements.push_back(placement);
  }
  layout.rules.push_back(rule);
  return layout;
}

/// The bytes of every file below a folder, by relative path.
std::map<std::string, std::vector<std::byte>> files_below(const MemoryState& state, const LocalDisk& fs,
                                                          const std::string& folder) {
  std::map<std::string, std::vector<std::byte>> files;
  for (const std::string& path : state.paths()) {
    if (path.starts_with(folder + "/") && fs.status(path).kind == FileKind::kFile) {
      files[path.substr(folder.size())] = state.content(path);
    }
  }
  return files;
}

TEST(Reshard, EqualsGatherThenCutByteForByte) {
  const std::uint64_t first = seed();
  for (std::uint64_t round = 0; round < 60; ++round) {
    SCOPED_TRACE("SHARD_SEED=" + std::to_string(first) + " round " + std::to_string(round));
    std::mt19937_64 random(first + round);
    Content content = random_content(random, 5, 13, kDtypes);
    content["three.dimensions"] =
        random_tensor(random, DType::kInt16, {5, 4, 3});  // So that every --dim cuts something.
    const Layout from = random_layout(random, true), to = random_layout(random, true);
    auto state = std::make_shared<MemoryState>();
    const std::unique_ptr<LocalDisk> fs = make_memory_disk(state);
    fs->make_folder("/d");
    write_checkpoint(*fs, *content_reader(content), {.format = "dcp", .destination = "/d/from", .layout = from});
    write_checkpoint(
        *fs, *open_checkpoint(*fs, "/d/from"),
        {.format = "dcp", .destination = "/d/direct", .layout = to, .threads = 3, .max_memory_bytes = 1 << 20});
    write_checkpoint(*fs, *open_checkpoint(*fs, "/d/from"),
                     {.format = "safetensors", .destination = "/d/whole.safetensors", .single_file = true});
    write_checkpoint(*fs, *open_checkpoint(*fs, "/d/whole.safetensors"),
                     {.format = "dcp", .destination = "/d/cut", .layout = to});
    EXPECT_EQ(read_content(*open_checkpoint(*fs, "/d/direct")), content);
    EXPECT_EQ(files_below(*state, *fs, "/d/direct"), files_below(*state, *fs, "/d/cut"));
    if (HasFailure()) return;
  }
}

/// A layout whose shardings a ShardedTensor also supports.
Layout without_replicas(std::mt19937_64& random) { return RanksLayout{static_cast<std::int64_t>(1 + random() % 6), 0}; }

TEST(Reshard, BetweenRankFilesEqualsGatherThenCutByteForByte) {
  const std::uint64_t first = seed();
  for (std::uint64_t round = 0; round < 45; ++round) {
    SCOPED_TRACE("SHARD_SEED=" + std::to_string(first) + " round " + std::to_string(round));
    std::mt19937_64 random(first + round);
    Content content = random_content(random, 5, 13, kDtypes);
    content["three.dimensions"] = random_tensor(random, DType::kInt16, {5, 4, 3});
    const RankFiles kind = static_cast<RankFiles>(round % 3);
    const Layout to =
        kind == RankFiles::kShardedTensor ? without_replicas(random) : random_layout(random, kind == RankFiles::kPlain);
    const Layout from = round % 2 == 0 ? random_layout(random) : without_replicas(random);
    const RankFiles from_kind = round % 2 == 0 ? RankFiles::kDTensor : static_cast<RankFiles>(round / 2 % 3);
    auto state = std::make_shared<MemoryState>();
    const std::unique_ptr<LocalDisk> fs = make_memory_disk(state);
    fs->make_folder("/d");
    const auto ranks = [](const std::string& name, const Layout& layout, RankFiles files) {
      return WriteCheckpoint{
          .format = "torch-ranks", .destination = "/d/" + name, .layout = layout, .threads = 2, .rank_files = files};
    };
    write_checkpoint(*fs, *content_reader(content), ranks("from", from, from_kind));
    const std::unique_ptr<Reader> source = open_checkpoint(*fs, "/d/from", "torch-ranks");
    EXPECT_EQ(read_content(*source), content);
    write_checkpoint(*fs, *source, ranks("direct", to, kind));
    write_checkpoint(*fs, *source, {.format = "torch", .destination = "/d/whole.pt", .single_file = true});
    write_checkpoint(*fs, *open_checkpoint(*fs, "/d/whole.pt"), ranks("cut", to, kind));
    EXPECT_EQ(read_content(*open_checkpoint(*fs, "/d/direct", "torch-ranks")), content);
    EXPECT_EQ(files_below(*state, *fs, "/d/direct"), files_below(*state, *fs, "/d/cut"));
    if (HasFailure()) return;
  }
}

TEST(Convert, RoundTripsOverEveryPairOfFormats) {
  const std::uint64_t first = seed();
  for (const char* a : {"safetensors", "torch", "dcp"}) {
    for (const char* b : {"safetensors", "torch", "dcp"}) {
      SCOPED_TRACE("SHARD_SEED=" + std::to_string(first) + " " + a + " to " + b);
      std::mt19937_64 random(first);
      const Content content = random_content(random, 9, 17, kDtypes);
      auto state = std::make_shared<MemoryState>();
      const std::unique_ptr<LocalDisk> fs = make_memory_disk(state);
      fs->make_folder("/d");
      const auto single = [](std::string_view format) { return format != "dcp"; };
      write_checkpoint(*fs, *content_reader(content), {.format = a, .destination = "/d/a", .single_file = single(a)});
      write_checkpoint(*fs, *open_checkpoint(*fs, "/d/a"),
                       {.format = b, .destination = "/d/b", .single_file = single(b)});
      EXPECT_EQ(read_content(*open_checkpoint(*fs, "/d/b")), content);
    }
  }
}

}  // namespace
}  // namespace shard
