// Replayed values produce the same bytes as written values.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <span>
#include <vector>

#include "tests/formats/pickle_text.h"

namespace shard {
namespace {

using namespace shard::testing;

/// [shared device, {"name": tensor}, [1, 2], the same list again]
Value* make(Arena& arena, Value* device, Value* tensor) {
  Value* numbers[] = {make_int(arena, 1), make_int(arena, 2)};
  Value* list = make_list(arena, ValueKind::kList, numbers);
  Value* named[] = {make_string(arena, "name"), tensor};
  Value* items[] = {device, make_list(arena, ValueKind::kDict, named), list, list};
  return make_list(arena, ValueKind::kTuple, items);
}

std::string dump_many(int protocol, int count, bool replayed) {
  Arena arena;
  Value* argument[] = {make_string(arena, "cpu")};
  Value* device = make_call(arena, make_global(arena, "torch", "device"), argument);
  pickle::DumpOptions options;
  options.protocol = protocol;
  options.tensor = [](pickle::Dumper& dumper, const Value& value) { dumper.string(std::to_string(value.number)); };
  pickle::Dumper dumper(std::move(options));
  std::optional<pickle::Recording> recording;
  for (int i = 0; i < count; ++i) {
    Value* tensor = make_tensor(arena, i);
    if (replayed && i == 1) {
      recording = dumper.record(*make(arena, device, tensor));
    } else if (recording) {
      const Value* tensors[] = {tensor};
      dumper.replay(*recording, tensors);
    } else {
      dumper.value(*make(arena, device, tensor));
    }
  }
  return dumper.finish();
}

TEST(PickleRecording, IsReplayedToTheBytesOfTheValue) {
  for (const int protocol : {2, 4}) EXPECT_EQ(dump_many(protocol, 5, true), dump_many(protocol, 5, false));
}

TEST(PickleRecording, HoldsWhereMemoIndicesGrowWider) { EXPECT_EQ(dump_many(2, 200, true), dump_many(2, 200, false)); }

void expect_small_pieces(Arena& arena, std::span<Value* const> items) {
  const Value* list = make_list(arena, ValueKind::kList, items);
  std::string pieces;
  std::size_t largest = 0;
  const auto sink = [&](std::string_view piece) {
    pieces += piece;
    largest = std::max(largest, piece.size());
  };
  pickle::Dumper dumper({.protocol = 2, .sink = sink, .tensor = {}});
  dumper.value(*list);
  EXPECT_EQ(dumper.finish(), "");
  EXPECT_EQ(pieces, dump_text(*list, 2));
  EXPECT_LT(largest, 100000U);
}

TEST(PickleDump, ASinkReceivesWhatFinishWouldReturn) {
  Arena arena;
  std::vector<Value*> items;
  for (int i = 0; i < 50000; ++i) items.push_back(make_string(arena, "text number " + std::to_string(i)));
  expect_small_pieces(arena, items);
}

TEST(PickleDump, NumbersAndReferencesGoToTheSinkAsTheyCome) {
  Arena arena;
  std::vector<Value*> items(200000, make_int(arena, 1));
  expect_small_pieces(arena, items);
  std::ranges::fill(items, make_string(arena, "one text"));
  expect_small_pieces(arena, items);
}

}  // namespace
}  // namespace shard
