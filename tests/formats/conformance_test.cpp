// The suite that every format passes, over the file system in memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

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

constexpr DType kEverywhere[] = {
    DType::kBool,       DType::kUint8,          DType::kInt8,           DType::kUint16,        DType::kInt16,
    DType::kUint32,     DType::kInt32,          DType::kUint64,         DType::kInt64,         DType::kFloat16,
    DType::kBfloat16,   DType::kFloat32,        DType::kFloat64,        DType::kComplex64,     DType::kFloat8E4m3fn,
    DType::kFloat8E5m2, DType::kFloat8E4m3fnuz, DType::kFloat8E5m2fnuz, DType::kFloat8E8m0fnu, DType::kFloat4E2m1fnX2};

struct Memory {
  std::shared_ptr<MemoryState> state = std::make_shared<MemoryState>();
  std::unique_ptr<LocalDisk> fs = make_memory_disk(state);
};

class Conformance : public ::testing::TestWithParam<const char*> {
 protected:
  /// "torch-ranks:plain" is torch-ranks with files of that kind.
  std::string format() const { return std::string(GetParam()).substr(0, std::string_view(GetParam()).find(':')); }
  bool has_ranks() const { return format() == "torch-ranks"; }
  WriteCheckpoint of_kind(WriteCheckpoint what) const {
    const std::string_view param = GetParam();
    if (param.ends_with(":dtensor")) what.rank_files = RankFiles::kDTensor;
    if (param.ends_with(":plain")) what.rank_files = RankFiles::kPlain;
    if (has_ranks() && std::holds_alternative<WholeLayout>(what.layout)) what.layout = RanksLayout{2};
    return what;
  }
  bool single_file() const { return !format_named(format()).suffixes.empty(); }

  void expect_round_trip(const Content& content, Layout layout = WholeLayout{}, bool folder = false) {
    Memory memory;
    memory.fs->make_folder("/d");
    write_checkpoint(
        *memory.fs, *content_reader(content),
        of_kind(
            {.format = format(), .destination = "/d/out", .layout = layout, .single_file = single_file() && !folder}));
    const std::unique_ptr<Reader> reader = open_checkpoint(*memory.fs, "/d/out");
    EXPECT_EQ(reader->catalog().format, format());
    EXPECT_EQ(read_content(*reader), content);
  }
};

TEST_P(Conformance, EveryDtypeRoundTrips) {
  std::mt19937_64 random(1);
  Content content;
  for (const DType dtype : kEverywhere) content[std::string(dtype_name(dtype))] = random_tensor(random, dtype, {3, 5});
  expect_round_trip(content);
}

TEST_P(Conformance, EmptyAndZeroDimensionalTensorsRoundTrip) {
  std::mt19937_64 random(2);
  expect_round_trip({{"scalar", random_tensor(random, DType::kFloat32, {})},
                     {"none", random_tensor(random, DType::kInt64, {0})},
                     {"none.inside", random_tensor(random, DType::kBfloat16, {3, 0, 2})},
                     {"one", random_tensor(random, DType::kBool, {1, 1, 1})}});
}

TEST_P(Conformance, NamesOfEveryKindRoundTrip) {
  std::mt19937_64 random(3);
  Content content;
  for (const char* name :
       {"ünïcode.名前", "with space", "quote\"back\\slash", "a/b", "..", ".hidden", "tab\there", "x"}) {
    content[name] = random_tensor(random, DType::kUint8, {2});
  }
  expect_round_trip(content);
}

TEST_P(Conformance, SeveralFilesRoundTrip) {
  if (has_ranks()) GTEST_SKIP() << format() << " always writes one file per rank";
  std::mt19937_64 random(4);
  const Content content = random_content(random, 40, 9, kEverywhere);
  expect_round_trip(content, ShardsLayout{5}, true);
  expect_round_trip(content, SizeLayout{1000}, true);
}

TEST_P(Conformance, PiecesRoundTripWhereTheFormatHoldsThem) {
  if (!format_named(format()).traits.pieces) GTEST_SKIP() << format() << " stores only whole tensors";
  std::mt19937_64 random(5);
  const Content content = random_content(random, 20, 9, kEverywhere);
  for (const std::int64_t ranks : {1, 2, 3, 7}) {
    for (const int dim : {0, 1, -1}) expect_round_trip(content, RanksLayout{ranks, dim}, true);
  }
}

TEST_P(Conformance, RandomContentRoundTripsWhateverTheThreadsAndMemory) {
  const std::uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  const Content content = random_content(random, 12, 40, kEverywhere);
  std::map<std::string, std::vector<std::byte>> first;
  for (const auto& [threads, memory_bytes] : {std::pair{1, 64 << 20}, {3, 1 << 20}, {8, 4 << 20}}) {
    Memory memory;
    memory.fs->make_folder("/d");
    write_checkpoint(*memory.fs, *content_reader(content),
                     of_kind({.format = format(),
                              .destination = "/d/out",
                              .single_file = single_file(),
                              .threads = threads,
                              .max_memory_bytes = memory_bytes}));
    std::map<std::string, std::vector<std::byte>> files;
    for (const std::string& path : memory.state->paths()) {
      if (memory.fs->status(path).kind == FileKind::kFile) files[path] = memory.state->content(path);
    }
    if (first.empty()) first = files;
    EXPECT_EQ(files, first) << threads << " threads";
  }
}

TEST_P(Conformance, AFileCutAnywhereIsAnErrorOrStillWhole) {
  std::mt19937_64 random(6);
  const Content content = {{"a", random_tensor(random, DType::kFloat32, {4, 4})},
                           {"b", random_tensor(random, DType::kInt8, {5})}};
  Memory memory;
  memory.fs->make_folder("/d");
  write_checkpoint(*memory.fs, *content_reader(content),
                   of_kind({.format = format(), .destination = "/d/out", .single_file = single_file()}));
  int refused = 0;
  for (const std::string& victim : memory.state->paths()) {
    if (memory.fs->status(victim).kind != FileKind::kFile) continue;
    const std::vector<std::byte> whole = memory.state->content(victim);
    for (std::size_t size = 0; size < whole.size(); size += 1 + whole.size() / 200) {
      Memory cut;
      for (const std::string& path : memory.state->paths()) {
        if (memory.fs->status(path).kind != FileKind::kFile) continue;
        std::vector<std::byte> content_bytes = memory.state->content(path);
        if (path == victim) content_bytes.resize(size);
        cut.state->put(path, content_bytes);
      }
      try {
        EXPECT_EQ(read_content(*open_checkpoint(*cut.fs, "/d/out", format())), content) << victim << " cut to " << size;
      } catch (const Error& e) {
        const bool is_layout = victim.ends_with("layout.json") && e.code() == ErrorCode::kInvalidArgument;
        if (!is_layout) {
          EXPECT_THAT(e.code(), ::testing::AnyOf(ErrorCode::kCorruption, ErrorCode::kNotFound)) << e.what();
        }
        ++refused;
      }
    }
  }
  EXPECT_GT(refused, 50);
}

TEST_P(Conformance, EveryFailingCallLeavesTheDestinationAsItWas) {
  std::mt19937_64 random(7);
  const Content content = random_content(random, 4, 5, kEverywhere);
  const Content old = {{"old", random_tensor(random, DType::kUint8, {3})}};
  for (const bool force : {false, true}) {
    bool done = false;
    for (std::int64_t call = 0; !done; ++call) {
      ASSERT_LT(call, 5000);
      Memory memory;
      memory.fs->make_folder("/d");
      const bool single = single_file();
      if (force)
        write_checkpoint(*memory.fs, *content_reader(old),
                         of_kind({.format = format(), .destination = "/d/out", .single_file = single}));
      memory.state->fail_at(memory.state->calls() + call);
      try {
        write_checkpoint(*memory.fs, *content_reader(content),
                         of_kind({.format = format(), .destination = "/d/out", .single_file = single, .force = force}));
        memory.state->fail_at(-1);
        EXPECT_EQ(read_content(*open_checkpoint(*memory.fs, "/d/out")), content);
        done = true;
      } catch (const Error& e) {
        memory.state->fail_at(-1);
        EXPECT_THAT(e.code(), ::testing::AnyOf(ErrorCode::kResource, ErrorCode::kNotFound, ErrorCode::kExists))
            << e.what();
        if (force) {
          EXPECT_EQ(read_content(*open_checkpoint(*memory.fs, "/d/out")), old) << "call " << call;
        } else {
          EXPECT_EQ(memory.fs->status("/d/out").kind, FileKind::kAbsent) << "call " << call;
        }
      }
      EXPECT_EQ(memory.state->open_files(), 0) << "call " << call;
    }
  }
}

std::vector<const char*> tested_formats() {
  std::vector<const char*> names{
      "safetensors",      "torch", "dcp", "megatron-dist", "dcp-hf", "torch-ranks", "torch-ranks:dtensor",
      "torch-ranks:plain"};
  const bool has_hdf5 = std::ranges::any_of(format_names(), [](const std::string& name) { return name == "hdf5"; });
  if (has_hdf5) names.push_back("hdf5");
  return names;
}

INSTANTIATE_TEST_SUITE_P(Formats, Conformance, ::testing::ValuesIn(tested_formats()), [](const auto& each) {
  std::string name(each.param);
  std::ranges::replace_if(
      name, [](char c) { return c == '-' || c == ':'; }, '_');
  return name;
});

}  // namespace
}  // namespace shard
