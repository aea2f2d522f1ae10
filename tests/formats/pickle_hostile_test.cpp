#include <gtest/gtest.h>

#include <chrono>
#include <random>

#include "tests/formats/pickle_text.h"
#include "tests/support/cpu_time.h"
#include "tests/support/expect_error.h"

namespace shard {
namespace {

using namespace shard::testing;

/// A pickle with most opcodes that data needs.
std::string sample() {
  return "\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00}q\x00(\x8c\x01"
         "aG\x3f\xf8\x00\x00\x00\x00\x00\x00\x8c\x01"
         "b]\x94(K\x01M\x02\x02J"
         "\x03\x00\x00\x00\x8a\x05\x01\x02\x03\x04\x05NeX\x02\x00\x00\x00\xc3\xa4(\x88\x89t\x94\x8c\x03set\x8f\x94("
         "K\x01K\x02\x90\x8c\x05"
         "bytesC\x02\x00\xff\x8c\x06global\x8c\x05torch\x8c\x04Size\x93\x94K\x02K\x03\x86\x94\x85\x94R\x94\x8c\x03objc"
         "torch.distributed.checkpoint.metadata\nMetadata\n)\x81}\x8c\x01xK\x01sb\x8c\x03pid(\x8c\x07storagectorch\nFloatStorage\n\x8c\x01xNK\x01tQu."s;
}

struct Hostile {
  const char* name;
  std::string text;
  ErrorCode code;
  const char* words;  ///< Part of the message.
};

const Hostile kHostile[] = {
    {"empty", "", ErrorCode::kCorruption, "empty"},
    {"no proto", "(lp0\n.", ErrorCode::kUnsupported, "PROTO"},
    {"a zip in its place", "PK\x03\x04", ErrorCode::kCorruption, "PROTO"},
    {"garbage", "\x00\x01\x02"s, ErrorCode::kCorruption, "PROTO"},
    {"protocol 6", "\x80\x06N.", ErrorCode::kUnsupported, "protocol 6"},
    {"protocol 1", "\x80\x01N.", ErrorCode::kUnsupported, "protocol 1"},
    {"os.system",
     "\x80\x02"
     "cos\nsystem\nX\x02\x00\x00\x00id\x85R."s,
     ErrorCode::kCorruption, "os.system"},
    {"posix.system by stack", "\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x02id\x85R.", ErrorCode::kCorruption,
     "posix.system"},
    {"eval",
     "\x80\x02"
     "c__builtin__\neval\nX\x01\x00\x00\x00"
     "1\x85R."s,
     ErrorCode::kCorruption, "builtins.eval"},
    {"nested getattr",
     "\x80\x02"
     "c__builtin__\ngetattr\n(c__builtin__\ngetattr\n(ctorch\nTensor\nX\x01\x00\x00\x00"
     "AtRX\x01\x00\x00\x00"
     "BtR."s,
     ErrorCode::kCorruption, "getattr"},
    {"getattr of a method",
     "\x80\x02"
     "c__builtin__\ngetattr\n(cpathlib\nPath\nX\x06\x00\x00\x00unlinktR."s,
     ErrorCode::kCorruption, "getattr"},
    {"getattr of a dunder",
     "\x80\x02"
     "c__builtin__\ngetattr\n(ctorch\nTensor\nX\x09\x00\x00\x00__class__tR."s,
     ErrorCode::kCorruption, "getattr"},
    {"getattr of a value",
     "\x80\x02"
     "c__builtin__\ngetattr\nK\x01X\x01\x00\x00\x00"
     "A\x86R."s,
     ErrorCode::kCorruption, "getattr"},
    {"getattr as a class",
     "\x80\x02"
     "c__builtin__\ngetattr\n)\x81."s,
     ErrorCode::kCorruption, "getattr"},
    {"reduce of an int", "\x80\x02K\x01)R.", ErrorCode::kCorruption, "calls"},
    {"reduce of a made object",
     "\x80\x02"
     "ctorch\nSize\n)R)R.",
     ErrorCode::kCorruption, "calls"},
    {"reduce with a list",
     "\x80\x02"
     "ctorch\nSize\n]R.",
     ErrorCode::kCorruption, "tuple"},
    {"new object of a string", "\x80\x04\x8c\x01x)\x81.", ErrorCode::kCorruption, "class"},
    {"build of a global",
     "\x80\x02"
     "ctorch\nTensor\n}b.",
     ErrorCode::kCorruption, "state"},
    {"build of a dict", "\x80\x02}}b.", ErrorCode::kCorruption, "state"},
    {"build twice",
     "\x80\x02"
     "ctorch\nSize\n)R}b}b.",
     ErrorCode::kCorruption, "twice"},
    {"append to a tuple",
     "\x80\x02)K\x01"
     "a.",
     ErrorCode::kCorruption, "list"},
    {"append to a global",
     "\x80\x02"
     "ctorch\nSize\nK\x01"
     "a.",
     ErrorCode::kCorruption, "list"},
    {"items of a list", "\x80\x02]K\x01K\x02s.", ErrorCode::kCorruption, "dict"},
    {"items of an int", "\x80\x02K\x01(K\x01K\x02u.", ErrorCode::kCorruption, "dict"},
    {"odd items", "\x80\x02}(K\x01u.", ErrorCode::kCorruption, "key"},
    {"add to a list", "\x80\x04](K\x01\x90.", ErrorCode::kCorruption, "set"},
    {"pop below a mark", "\x80\x02K\x01(\x85.", ErrorCode::kCorruption, "needs"},
    {"appends below a mark",
     "\x80\x02](K\x01(K\x02"
     "ee.",
     ErrorCode::kCorruption, "list"},
    {"no mark", "\x80\x02]e.", ErrorCode::kCorruption, "mark"},
    {"stop with nothing", "\x80\x02.", ErrorCode::kCorruption, "needs"},
    {"stop with two", "\x80\x02NN.", ErrorCode::kCorruption, "left"},
    {"memo hole", "\x80\x02h\x07.", ErrorCode::kCorruption, "memo"},
    {"memo far away", "\x80\x02Nr\xff\xff\xff\x7f."s, ErrorCode::kCorruption, "memo"},
    {"memo of nothing", "\x80\x04\x94N.", ErrorCode::kCorruption, "needs"},
    {"negative memo line", "\x80\x02Np-1\n.", ErrorCode::kCorruption, "memo"},
    {"string past the end",
     "\x80\x02X\xff\xff\xff\xff"
     "abc.",
     ErrorCode::kCorruption, "bytes"},
    {"string of 2^63",
     "\x80\x04\x8d\x00\x00\x00\x00\x00\x00\x00\x80"
     "abc."s,
     ErrorCode::kCorruption, "bytes"},
    {"bytes of 2^64-1",
     "\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\xff"
     "abc.",
     ErrorCode::kCorruption, "bytes"},
    {"negative integer length", "\x80\x02\x8b\xff\xff\xff\xff.", ErrorCode::kCorruption, "bytes"},
    {"integer past the limit", "\x80\x02\x8b\x01\x00\x01\x00"s + std::string(65537, '\1') + ".", ErrorCode::kCorruption,
     "limit"},
    {"frame past the end", "\x80\x04\x95\x40\x00\x00\x00\x00\x00\x00\x00N."s, ErrorCode::kCorruption, "frame"},
    {"INST", "\x80\x02(ios\nsystem\n.", ErrorCode::kCorruption, "INST"},
    {"OBJ", "\x80\x02(ctorch\nSize\no.", ErrorCode::kCorruption, "OBJ"},
    {"EXT1", "\x80\x02\x82\x01.", ErrorCode::kCorruption, "EXT1"},
    {"PERSID", "\x80\x02Pabc\n.", ErrorCode::kCorruption, "PERSID"},
    {"NEXT_BUFFER", "\x80\x05\x97.", ErrorCode::kCorruption, "NEXT_BUFFER"},
    {"no opcode", "\x80\x02\xfe.", ErrorCode::kCorruption, "0xfe"},
    {"second PROTO", "\x80\x02\x80\x02N.", ErrorCode::kCorruption, "PROTO"},
    {"global without a module",
     "\x80\x02"
     "c\nFoo\n.",
     ErrorCode::kCorruption, "without a module"},
    {"global without a name", "\x80\x04\x8c\x05torch\x8c\0\x93."s, ErrorCode::kCorruption, "without a module"},
    {"global by numbers", "\x80\x04K\x01K\x02\x93.", ErrorCode::kCorruption, "strings"},
    {"kwargs that are a list", "\x80\x04\x8c\x05torch\x8c\x04Size\x93)]\x92.", ErrorCode::kCorruption, "dict"},
};

TEST(PickleHostile, EachIsRefusedWithItsReason) {
  for (const Hostile& hostile : kHostile) {
    const Error error = error_of(hostile.text);
    EXPECT_EQ(error.code(), hostile.code) << hostile.name << ": " << error.what();
    EXPECT_NE(std::string(error.what()).find(hostile.words), std::string::npos) << hostile.name << ": " << error.what();
    EXPECT_EQ(error.file(), "data.pkl") << hostile.name;
  }
}

TEST(PickleHostile, ForbiddenGlobalHasItsKindAndPlace) {
  const Error error = error_of(
      "\x80\x02"
      "cos\nsystem\n.");
  EXPECT_EQ(error.kind(), FindingKind::kForbiddenGlobal);
  EXPECT_EQ(error.found(), "os.system");
  EXPECT_NE(std::string(error.what()).find("byte 2 (GLOBAL)"), std::string::npos) << error.what();
}

TEST(PickleHostile, SampleLoadsAndEveryPrefixIsCorrupt) {
  const std::string text = sample();
  ASSERT_EQ(error_of(text).code(), ErrorCode::kInterrupted) << error_of(text).what();
  for (std::size_t size = 0; size < text.size(); ++size) {
    // A separate copy, so that a sanitizer detects reads past its end.
    const std::vector<char> prefix(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(size));
    EXPECT_EQ(error_of({prefix.data(), prefix.size()}).code(), ErrorCode::kCorruption) << size;
  }
}

TEST(PickleHostile, AMillionLevelsLoadAndCannotBeWritten) {
  std::string text = "\x80\x02" + std::string(1'000'000, ']') + std::string(999'999, 'a') + ".";
  Arena arena;
  const Value* root = load_text(arena, text);
  ASSERT_EQ(root->items().size(), 1u);
  try {
    dump_text(*root, 2);
    FAIL() << "it was written";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
  }
}

TEST(PickleHostile, DoublingListsStaySmall) {
  std::string text = "\x80\x02]q\x00"s;  // 60 lists, each twice in the next: 2^60 leaves, 61 nodes.
  for (char i = 0; i < 60; ++i) text += "](h"s + i + 'h' + i + "eq" + static_cast<char>(i + 1);
  std::string tuple = "\x80\x02("s + text.substr(2) + "t.";
  const auto budget = std::make_shared<Budget>();
  Arena arena(budget);
  EXPECT_EQ(load_text(arena, tuple, known_only())->items().size(), 61u);
  EXPECT_LT(dump_text(*load_text(arena, tuple, known_only()), 2).size(), 1000u);
  EXPECT_LT(budget->spent(), 64 << 10);
}

TEST(PickleHostile, ValuesArePaidForByTheBudget) {
  const std::string text = "\x80\x02(" + std::string(1'000'000, ']') + "t.";
  Arena arena(std::make_shared<Budget>());
  const Error error = shard::test::error_of([&] { load_text(arena, text); });
  EXPECT_EQ(error.code(), ErrorCode::kCorruption);
  EXPECT_NE(std::string(error.what()).find("bytes of values and names are far too many"), std::string::npos);
}

TEST(PickleHostile, AStateOfManyParameterDictsIsPaidForEachTime) {
  std::string keys;
  for (int i = 0; i < 2000; ++i) keys += "X\4\0\0\0"s + std::to_string(1000 + i) + "N";
  const std::string build = "h\0)\x81h\1b0"s;  // It has no parameter, so it is not converted.
  std::string text =
      "\x80\2ctorch.nn.modules.container\nParameterDict\nq\0000}q\1(X\x0b\0\0\0_parameters}X\5\0\0\0_keys}("s + keys +
      "uu0";
  for (int i = 0; i < 1000; ++i) text += build;
  pickle::LoadOptions options = known_only();
  options.opaque_unknown = true;
  Arena arena(std::make_shared<Budget>());
  test::expect_error(ErrorCode::kCorruption, "steps over values are far too many",
                     [&] { load_text(arena, text + "N.", options); });
}

TEST(PickleHostile, ATextThatManyCallsEncodeIsPaidForEachTime) {
  std::string text =
      "\x80\2c_codecs\nencode\nq\0000X\0\0\x10\0"s + std::string(1 << 20, 'a') + "X\6\0\0\0latin1\x86q\0010"s;
  for (int i = 0; i < 100; ++i) text += "h\0h\1R0"s;
  Arena arena(std::make_shared<Budget>());
  test::expect_error(ErrorCode::kCorruption, "bytes that were read or decoded are far too many",
                     [&] { load_text(arena, text + "N."); });
}

TEST(PickleHostile, EmptyListsThatAreNotMemoizedArePaidForByTheirBytes) {
  const std::string text = "\x80\x02](" + std::string(1'000'000, ']') + "e.";
  Arena arena(std::make_shared<Budget>());
  arena.earn(std::ssize(text));
  EXPECT_EQ(load_text(arena, text)->items().size(), 1'000'000u);
}

TEST(PickleHostile, SharedKeyDictsStayLinear) {
  std::string text = "\x80\x02}("s;
  for (int i = 0; i < 300'000; ++i) text += "K\x01N";
  text += "u.";
  Arena arena;
  EXPECT_LT(test::cpu_seconds([&] { EXPECT_EQ(load_text(arena, text)->items().size(), 2u); }), test::cpu_limit(2));
}

TEST(PickleHostile, MutationsLoadOrAreRefused) {
  const std::string text = sample();
  std::mt19937 random(20260101);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  int loaded = 0, refused = 0;
  while (std::chrono::steady_clock::now() < end) {
    std::string mutant = text;
    for (int changes = 1 + static_cast<int>(random() % 3); changes > 0; --changes) {
      const std::size_t at = random() % mutant.size();
      switch (random() % 4) {
        case 0:
          mutant[at] = static_cast<char>(random());
          break;
        case 1:
          mutant.erase(at, 1 + random() % 4);
          break;
        case 2:
          mutant.insert(at, 1, static_cast<char>(random()));
          break;
        default:
          mutant.insert(at, mutant.substr(random() % mutant.size(), random() % 20));
          break;
      }
      if (mutant.empty()) mutant = text;
    }
    Arena arena;
    try {
      const Value* value = load_text(arena, mutant);
      ++loaded;
      dump_text(*value, 4);
    } catch (const Error& error) {
      ++refused;
      EXPECT_TRUE(error.code() == ErrorCode::kCorruption || error.code() == ErrorCode::kUnsupported) << error.what();
    }
  }
  EXPECT_GT(loaded, 10);
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace shard
