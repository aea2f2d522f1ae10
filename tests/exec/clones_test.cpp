#include "libshard/exec/clones.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "libshard/plan/plan.h"
#include "tests/exec/cloning_disk.h"
#include "tests/support/memory_checkpoint.h"

namespace shard {
namespace {

using testing::add_storage;
using testing::add_tensor;
using testing::CloningDisk;
using testing::CountingFiles;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::MadeChunk;
using testing::MemoryReader;
using ::testing::Pair;

constexpr std::int64_t kMiB = 1 << 20;
using Range = std::pair<std::int64_t, std::int64_t>;

struct Lines {
  Catalog source, target;

  /// A line of bytes; `begins` has the offset of each side's storage in the file.
  void add(const char* name, std::int64_t bytes, std::int64_t source_gap, std::int64_t target_gap, int copies = 1) {
    const std::uint32_t from = add_storage(source, 0, bytes, source_gap);
    add_tensor(source, name, DType::kUint8, {bytes}, {{{0}, {bytes}, {1}, 0, from, 0}});
    std::vector<MadeChunk> chunks;
    for (int i = 0; i < copies; ++i) {
      chunks.push_back({{0}, {bytes}, {1}, 0, add_storage(target, 0, bytes, target_gap), i});
    }
    add_tensor(target, name, DType::kUint8, {bytes}, chunks);
  }

  Clones clone(CloningDisk& disk, std::optional<TileRange> tiles = {}) {
    plan = plan_copies(source, target, {});
    std::vector<std::vector<std::byte>> content;
    for (const File& file : source.files) {
      content.emplace_back(static_cast<std::size_t>(file.bytes));
      for (std::size_t i = 0; i < content.back().size(); ++i) content.back()[i] = static_cast<std::byte>(i / 4096 + i);
    }
    const MemoryReader reader(source, content);
    files.emplace(target.files);
    return clone_runs(plan, tiles.value_or(TileRange{0, plan.tile_count}), source, reader, target, files->writers, disk,
                      progress);
  }

  Plan plan;
  Progress progress;
  std::optional<CountingFiles> files;
};

std::vector<Box> rests(const Clones& clones, const Unit& unit, std::int64_t begin, std::int64_t end) {
  std::vector<Box> boxes;
  const std::vector<std::int64_t> offset = {begin}, size = {end - begin};
  clones.for_each_rest(unit, Box(offset, size), [&](const Box& box) { boxes.push_back(box); });
  return boxes;
}

std::vector<std::string> rest_texts(const Clones& clones, const Unit& unit, std::int64_t begin, std::int64_t end) {
  std::vector<std::string> texts;
  for (const Box& box : rests(clones, unit, begin, end)) texts.push_back(to_string(box));
  return texts;
}

TEST(CloneRuns, CloneWholeBlocksThatLieAlikeAndLeaveTheEdges) {
  Lines lines;
  lines.add("w", 4 * kMiB, 100, 100 + 4096);
  CloningDisk disk(true);
  const Clones clones = lines.clone(disk);
  EXPECT_TRUE(disk.is_aligned);
  ASSERT_EQ(clones.ranges.size(), 1U);
  EXPECT_THAT(clones.ranges.begin()->second, ElementsAre(Range{3996, 4 * kMiB - 100}));
  EXPECT_EQ(lines.progress.bytes_cloned, 4 * kMiB - 4096);
  const std::vector<std::byte>& written = lines.files->owned[0]->bytes;
  EXPECT_EQ(written[100 + 4096 + 3996], std::byte{1}) << "byte 4096 of the source";
}

TEST(CloneRuns, LeaveWhatLiesOtherwiseWithinABlock) {
  Lines lines;
  lines.add("w", 4 * kMiB, 100, 200);
  CloningDisk disk(true);
  EXPECT_THAT(lines.clone(disk).ranges, IsEmpty());
  EXPECT_EQ(disk.asked, 0);
}

TEST(CloneRuns, LeaveWhatIsBelowOneMebibyteAndReplicas) {
  Lines lines;
  lines.add("a", kMiB - 1, 0, 0);
  lines.add("b", 2 * kMiB, 1, 1, 2);
  CloningDisk disk(true);
  EXPECT_THAT(lines.clone(disk).ranges, IsEmpty());
}

TEST(CloneRuns, LeaveStoragesThatAreNotPlain) {
  Lines lines;
  lines.add("w", 2 * kMiB, 0, 0);
  lines.source.storages[0].plain = false;
  CloningDisk disk(true);
  EXPECT_THAT(lines.clone(disk).ranges, IsEmpty());
}

TEST(CloneRuns, AskAPairOfFilesThatRefusesOnlyOnce) {
  Lines lines;
  lines.add("a", 2 * kMiB, 0, 0);
  lines.add("b", 2 * kMiB, 0, 0);
  CloningDisk disk(false);
  EXPECT_THAT(lines.clone(disk).ranges, IsEmpty());
  EXPECT_EQ(disk.asked, 1);
  EXPECT_EQ(lines.progress.bytes_cloned, 0);
}

TEST(CloneRuns, CloneOnlyWithinTheTilesOfARank) {
  Lines lines;
  lines.add("w", 8 * kMiB, 0, 0);
  CloningDisk disk(true);
  const Clones middle = lines.clone(disk, TileRange{2, 5});
  EXPECT_THAT(middle.ranges, ElementsAre(Pair(0, ElementsAre(Range{2 * kMiB, 5 * kMiB}))));
  EXPECT_THAT(lines.clone(disk, TileRange{6, 8}).ranges, ElementsAre(Pair(0, ElementsAre(Range{6 * kMiB, 8 * kMiB}))));
}

TEST(Clones, LeaveTheRestOfABox) {
  Arena arena;
  const std::vector<std::int64_t> shape = {100};
  Unit unit;
  unit.shape = arena.dims(shape);
  unit.first_tile = 3;
  Clones clones;
  clones.ranges[3] = {{10, 20}, {30, 60}};
  EXPECT_THAT(rest_texts(clones, unit, 0, 100), ElementsAre("[0:10]", "[20:30]", "[60:100]"));
  EXPECT_THAT(rest_texts(clones, unit, 10, 60), ElementsAre("[20:30]"));
  EXPECT_THAT(rest_texts(clones, unit, 15, 35), ElementsAre("[20:30]"));
  EXPECT_THAT(rest_texts(clones, unit, 40, 50), IsEmpty());
  EXPECT_THAT(rest_texts(clones, unit, 60, 70), ElementsAre("[60:70]"));
  EXPECT_THAT(rest_texts(clones, unit, 5, 10), ElementsAre("[5:10]"));
  unit.first_tile = 4;
  EXPECT_THAT(rest_texts(clones, unit, 0, 100), ElementsAre("[0:100]")) << "another unit";
}

}  // namespace
}  // namespace shard
