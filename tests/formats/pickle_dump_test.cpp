#include <gtest/gtest.h>

#include "tests/formats/pickle_text.h"

namespace shard {
namespace {

using namespace shard::testing;

/// Loads and writes again.
std::string again(const std::string& text, int protocol) {
  Arena arena;
  return dump_text(*load_text(arena, text), protocol);
}

TEST(PickleDump, IntegersTakeTheShortestOpcode) {
  const std::string text = "\x80\x02(K\x05M\x00\x01J\xff\xff\xff\xff\x8a\x05\x00\x00\x00\x00\x01t."s;
  EXPECT_EQ(again(text, 2), "\x80\x02(K\x05M\x00\x01J\xff\xff\xff\xff\x8a\x05\x00\x00\x00\x00\x01tq\x00."s);
}

TEST(PickleDump, SharedListIsWrittenOnce) {
  EXPECT_EQ(again("\x80\x02]q\x01h\x01\x86."s, 2), "\x80\x02]q\x00h\x00\x86q\x01."s);
}

TEST(PickleDump, CycleThroughAListIsKept) {
  EXPECT_EQ(again("\x80\x02]q\x00h\x00"
                  "a."s,
                  4),
            "\x80\x04]\x94h\x00"
            "a."s);
}

TEST(PickleDump, TupleThatHoldsItselfIsKept) {
  const std::string text =
      "\x80\x02]q\x00h\x00\x85q\x01"
      "a0h\x01."s;  // t = ([t],)
  const std::string written = again(text, 2);
  Arena arena;
  const Value* tuple = load_text(arena, written);
  ASSERT_EQ(tuple->kind, ValueKind::kTuple);
  EXPECT_EQ(tuple->items()[0]->items()[0], tuple);
}

TEST(PickleDump, Protocol2SpellsBytesAndSetsAsCalls) {
  EXPECT_EQ(again("\x80\x04"
                  "C\x02\xff"
                  "a."s,
                  2),
            "\x80\x02"
            "c_codecs\nencode\nq\x00X\x03\x00\x00\x00\xc3\xbf"
            "aq\x01X\x06\x00\x00\x00latin1q\x02\x86Rq\x03."s);
  EXPECT_EQ(again("\x80\x04\x8f(K\x01\x90."s, 2),
            "\x80\x02"
            "c__builtin__\nset\nq\x00]K\x01"
            "a\x85Rq\x01."s);
}

TEST(PickleDump, Protocol4KeepsBytesAndSets) {
  EXPECT_EQ(again("\x80\x04"
                  "C\x02\xff"
                  "a."s,
                  4),
            "\x80\x04"
            "C\x02\xff"
            "a\x94."s);
  EXPECT_EQ(again("\x80\x04\x8f(K\x01\x90."s, 4), "\x80\x04\x8f\x94(K\x01\x90."s);
}

TEST(PickleDump, BatchesHoldAThousand) {
  std::string text = "\x80\x02](" + std::string(2001, 'N') + "e.";
  EXPECT_EQ(again(text, 2), "\x80\x02]q\x00("s + std::string(1000, 'N') + "e(" + std::string(1000, 'N') + "eNa.");
}

TEST(PickleDump, MemoGrowsPast256) {
  std::string text = "\x80\x02("s + [] {
    std::string lists;
    for (int i = 0; i < 300; ++i) lists += ']';
    return lists;
  }() + "t.";
  const std::string written = again(text, 2);
  EXPECT_NE(written.find("]r\x00\x01\x00\x00"s), std::string::npos);
  Arena arena;
  EXPECT_EQ(load_text(arena, written)->items().size(), 300u);
}

TEST(PickleDump, OpaqueValuesAreRefused) {
  Arena arena;
  pickle::LoadOptions options = known_only();
  options.opaque_unknown = true;
  const std::string text =
      "\x80\x02"
      "cmy\nThing\n)R."s;
  const Value* value = load_text(arena, text, options);
  try {
    dump_text(*value, 2);
    FAIL() << "it was written";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_NE(std::string(error.what()).find("my.Thing"), std::string::npos);
  }
}

}  // namespace
}  // namespace shard
