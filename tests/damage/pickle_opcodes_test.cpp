// Every opcode: with a truncated argument, with too few items on the stack, with no mark, with values of every wrong
// kind.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "formats/parts/pickle/opcodes.h"
#include "tests/formats/pickle_text.h"

namespace shard {
namespace {

using namespace shard::testing;
using ::testing::HasSubstr;

std::string pickled(const std::string& body) { return "\x80\x05" + body + "."; }

struct Opcode {
  const char* name;
  std::string bytes;  ///< Opcode and a whole argument.
  int needs = 0;      ///< Values on the stack.
  bool mark = false;
};

const Opcode kOpcodes[] = {
    {"POP", "0", 1},
    {"POP_MARK", "1", 0, true},
    {"DUP", "2", 1},
    {"BINBYTES", "B\x02\0\0\0ab"s},
    {"SHORT_BINBYTES", "C\x02"s + "ab"},
    {"BINFLOAT", "G\x3f\xf0\0\0\0\0\0\0"s},
    {"INT", "I12\n"},
    {"BININT", "J\1\2\3\4"},
    {"BININT1", "K\1"},
    {"BININT2", "M\1\2"},
    {"BINPERSID", "Q", 1},
    {"REDUCE", "R", 2},
    {"BINSTRING", "T\x02\0\0\0ab"s},
    {"SHORT_BINSTRING", "U\x02"s + "ab"},
    {"BINUNICODE", "X\x02\0\0\0ab"s},
    {"APPEND", "a", 2},
    {"BUILD", "b", 2},
    {"GLOBAL", "ctorch\nSize\n"},
    {"DICT", "d", 0, true},
    {"APPENDS", "e", 1, true},
    {"GET", "g0\n"},
    {"BINGET", "h\0"s},
    {"LONG_BINGET", "j\0\0\0\0"s},
    {"LIST", "l", 0, true},
    {"PUT", "p0\n", 1},
    {"BINPUT", "q\0"s, 1},
    {"LONG_BINPUT", "r\0\0\0\0"s, 1},
    {"SETITEM", "s", 3},
    {"TUPLE", "t", 0, true},
    {"SETITEMS", "u", 1, true},
    {"NEWOBJ", "\x81", 2},
    {"TUPLE1", "\x85", 1},
    {"TUPLE2", "\x86", 2},
    {"TUPLE3", "\x87", 3},
    {"LONG1", "\x8a\2\1\2"},
    {"LONG4", "\x8b\2\0\0\0\1\2"s},
    {"SHORT_BINUNICODE", "\x8c\2"s + "ab"},
    {"BINUNICODE8", "\x8d\2\0\0\0\0\0\0\0"s + "ab"},
    {"BINBYTES8", "\x8e\2\0\0\0\0\0\0\0"s + "ab"},
    {"ADDITEMS", "\x90", 1, true},
    {"FROZENSET", "\x91", 0, true},
    {"NEWOBJ_EX", "\x92", 3},
    {"STACK_GLOBAL", "\x93", 2},
    {"MEMOIZE", "\x94", 1},
    {"FRAME", "\x95\0\0\0\0\0\0\0\0"s},
    {"BYTEARRAY8", "\x96\2\0\0\0\0\0\0\0"s + "ab"},
};

void expect_refused(const std::string& text, const std::string& words, const std::string& what) {
  const Error error = error_of(text);
  EXPECT_EQ(code_name(error.code()), "corruption") << what << ": " << error.what();
  EXPECT_EQ(error.kind(), FindingKind::kBadPickle) << what;
  EXPECT_EQ(error.file(), "data.pkl") << what;
  EXPECT_THAT(error.what(), HasSubstr(words)) << what;
}

TEST(PickleOpcodes, ArgumentsThatAreCutAreRefused) {
  for (const Opcode& opcode : kOpcodes) {
    const std::string values(static_cast<std::size_t>(opcode.needs), 'N');
    for (std::size_t size = 1; size < opcode.bytes.size(); ++size) {
      const bool is_line = opcode.bytes.back() == '\n';
      expect_refused("\x80\x05" + values + opcode.bytes.substr(0, size), is_line ? "a line without an end" : "needs",
                     std::string(opcode.name) + " cut to " + std::to_string(size));
    }
  }
}

TEST(PickleOpcodes, TooFewValuesAreRefusedByNumber) {
  for (const Opcode& opcode : kOpcodes) {
    for (int values = 0; values < opcode.needs; ++values) {
      const std::string stack(static_cast<std::size_t>(values), 'N');
      const std::string mark = opcode.mark ? "(" : "";
      const Error error = error_of(pickled(stack + mark + opcode.bytes));
      EXPECT_EQ(error.code(), ErrorCode::kCorruption) << opcode.name;
      EXPECT_THAT(error.what(), HasSubstr(std::string("(") + opcode.name + ")"));
    }
  }
}

TEST(PickleOpcodes, ValuesBelowAMarkAreNotTaken) {
  for (const Opcode& opcode : kOpcodes) {
    if (opcode.needs == 0 || opcode.mark || std::string_view(opcode.name) == "POP") continue;
    expect_refused(pickled("NNN(" + opcode.bytes), "needs", opcode.name);
  }
}

TEST(PickleOpcodes, MarksMustBeThere) {
  for (const Opcode& opcode : kOpcodes) {
    if (opcode.mark) expect_refused(pickled("]" + opcode.bytes), "no mark is on the stack", opcode.name);
  }
}

TEST(PickleOpcodes, LengthsPastTheEndAreRefusedBeforeAnythingIsMade) {
  const std::pair<const char*, int> counted[] = {{"B", 4},    {"C", 1},    {"T", 4},    {"U", 1},
                                                 {"X", 4},    {"\x8a", 1}, {"\x8b", 4}, {"\x8c", 1},
                                                 {"\x8d", 8}, {"\x8e", 8}, {"\x96", 8}};
  for (const auto& [opcode, bytes] : counted) {
    const std::string most(static_cast<std::size_t>(bytes), '\xff');
    expect_refused(pickled(opcode + most), "are left", opcode);
    const std::string highest_bit = std::string(static_cast<std::size_t>(bytes - 1), '\0') + "\x80";
    expect_refused(pickled(opcode + highest_bit), "are left", opcode);
  }
  expect_refused(pickled("\x95" + std::string(8, '\xff') + "N"), "a frame of 18446744073709551615 bytes", "FRAME");
}

TEST(PickleOpcodes, MemoPlacesThatWereNeverSetAreRefused) {
  for (const std::string& get :
       {"g7\n"s, "h\x07"s, "j\x07\0\0\0"s, "j\xff\xff\xff\xff"s, "g-1\n"s, "g9223372036854775807\n"s}) {
    expect_refused(pickled(get), "memo index", get);
  }
}

TEST(PickleOpcodes, LinesThatAreNoNumbersAreRefused) {
  for (const std::string& line : {"Ix\n"s, "I\n"s, "I1x\n"s, "I9223372036854775808\n"s, "Np\n"s, "Np1 \n"s, "gx\n"s}) {
    expect_refused(pickled(line), "not a 64-bit decimal number", line);
  }
}

TEST(PickleOpcodes, BytesThatAreNoOpcodesAreRefusedByName) {
  int refused = 0;
  for (int byte = 0; byte < 256; ++byte) {
    if (!pickle::op_name(static_cast<std::uint8_t>(byte)).empty()) continue;
    expect_refused("\x80\x05" + std::string(1, static_cast<char>(byte)), "not an opcode of Python",
                   std::to_string(byte));
    ++refused;
  }
  EXPECT_EQ(refused, 188);
}

TEST(PickleOpcodes, OpcodesThatRunThingsAreRefusedByName) {
  for (const char* opcode : {"i", "o", "\x82", "\x83", "\x84", "P", "\x97", "\x98"}) {
    expect_refused(pickled(opcode), "an opcode that checkpoints do not use", opcode);
  }
}

TEST(PickleOpcodes, TheEndMustBeThereAndLeaveOneValue) {
  expect_refused("\x80\x05N", "needs 1 bytes, but only 0 are left", "no STOP");
  expect_refused("\x80\x05NN.", "1 values are left below the result", "two values");
  expect_refused("\x80\x05(N.", "left below the result", "a mark");
  expect_refused("\x80\x05.", "needs 1 values", "nothing");
}

TEST(PickleOpcodes, BytesAfterTheEndAreLeftForTheCaller) {
  Arena arena;
  std::size_t consumed = 0;
  pickle::load(arena, bytes_of("\x80\x05N.more"), known_only(), &consumed);
  EXPECT_EQ(consumed, 4U);
}

// A value of each kind, as the opcodes that make it.
const std::array<std::string, 14> kValues{"N"s,
                                          "\x88"s,
                                          "K\1"s,
                                          "\x8a\x09\1\2\3\4\5\6\7\x08\x09"s,
                                          "G\x3f\xf0\0\0\0\0\0\0"s,
                                          "\x8c\1a"s,
                                          "C\1a"s,
                                          "]"s,
                                          ")"s,
                                          "}"s,
                                          "\x8f"s,
                                          "ctorch\nSize\n"s,
                                          "ctorch\nSize\n)R"s,
                                          "NQ"s};

bool takes_containers(char opcode) {
  return std::string_view("aesub\x90Rbd\x81\x92\x93").find(opcode) != std::string::npos;
}

/// Every opcode that takes values, over every pair of kinds and a third: it loads or is refused as damage.
TEST(PickleOpcodes, ValuesOfEveryWrongKindAreRefusedOrMeanSomething) {
  int loaded = 0, refused = 0;
  for (const Opcode& opcode : kOpcodes) {
    if (!takes_containers(opcode.bytes[0])) continue;
    for (const std::string& first : kValues) {
      for (const std::string& second : kValues) {
        for (const std::string& third : kValues) {
          const std::string stack = opcode.mark ? first + "(" + second + third : first + second + third;
          const Error error = error_of(pickled(stack + opcode.bytes + "q\x09" + "000h\x09"));
          const bool is_loaded = error.code() == ErrorCode::kInterrupted;
          EXPECT_TRUE(is_loaded || error.code() == ErrorCode::kCorruption) << opcode.name << ": " << error.what();
          ++(is_loaded ? loaded : refused);
        }
      }
    }
  }
  EXPECT_GT(refused, 10'000);
  EXPECT_LT(loaded, refused);
}

struct WrongKind {
  const char* what;
  std::string body;
  const char* words;
};
const WrongKind kWrongKinds[] = {
    {"REDUCE of None", "N)R", "calls a value that is not a class or function by name"},
    {"REDUCE of a string", "\x8c\1a)R", "calls a value that is not a class or function by name"},
    {"REDUCE with a list", "ctorch\nSize\n]R", "arguments that are not a tuple"},
    {"REDUCE with None", "ctorch\nSize\nNR", "arguments that are not a tuple"},
    {"NEWOBJ of a tuple", "))\x81", "builds an object from a value that is not the name of a class"},
    {"NEWOBJ with a dict", "ctorch\nSize\n}\x81", "arguments that are not a tuple"},
    {"NEWOBJ_EX with a list", "ctorch\nSize\n)]\x92", "keyword arguments that are not a dict"},
    {"NEWOBJ_EX of a number", "K\1)}\x92", "builds an object from a value that is not the name of a class"},
    {"BUILD of a list", "]}b", "sets the state of a value that is not an object"},
    {"BUILD of a dict", "}}b", "sets the state of a value that is not an object"},
    {"BUILD of a class", "ctorch\nSize\n}b", "sets the state of a value that is not an object"},
    {"APPEND to a dict", "}Na", "appends to a value that is not a list"},
    {"APPEND to a set", "\x8fNa", "appends to a value that is not a list"},
    {"APPENDS to a tuple", ")(Ne", "appends to a value that is not a list"},
    {"SETITEM of a list", "]NNs", "sets items of a value that is not a dict"},
    {"SETITEMS of a string", "\x8c\1a(NNu", "sets items of a value that is not a dict"},
    {"SETITEMS with a key alone", "}(Nu", "a key without a value"},
    {"DICT with a key alone", "(Nd", "a key without a value"},
    {"ADDITEMS to a list", "](N\x90", "adds items to a value that is not a set"},
    {"STACK_GLOBAL of numbers", "K\1K\2\x93", "module and name are not strings"},
    {"STACK_GLOBAL of bytes", "C\1aC\1b\x93", "module and name are not strings"},
    {"a name of 2,000 bytes", "c" + std::string(2000, 'a') + "\nb\n", "a global's name of 2001 bytes"},
};

TEST(PickleOpcodes, WrongKindsAreNamed) {
  for (const WrongKind& wrong : kWrongKinds) expect_refused(pickled(wrong.body), wrong.words, wrong.what);
}

}  // namespace
}  // namespace shard
