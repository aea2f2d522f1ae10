#include "apps/shardctl/text/value_text.h"

#include <gtest/gtest.h>

#include <array>
#include <sstream>

#include "tests/support/expect_error.h"

namespace shard::app {
namespace {

class ValueText : public ::testing::Test {
 protected:
  Value* integer(std::int64_t number) { return make_int(arena_, number); }
  Value* string(std::string_view text) { return make_string(arena_, text); }
  Value* list(ValueKind kind, std::vector<Value*> items) { return make_list(arena_, kind, items); }
  Value* huge(std::string_view bytes) {
    Value* value = make_value(arena_, ValueKind::kLong);
    value->set_text(arena_.copy(bytes));
    return value;
  }
  std::string text(const Value* value, std::size_t limit = 1000) { return value_text(catalog_, value, limit); }
  static std::string json(const Value* value) {
    std::ostringstream out;
    {
      JsonWriter writer(out);
      write_value(writer, value);
    }
    return out.str();
  }

  Arena arena_;
  Catalog catalog_;
};

TEST_F(ValueText, PrintsBytesAsAsciiAndTextAsItIs) {
  Value* bytes = make_value(arena_, ValueKind::kBytes);
  bytes->set_text(arena_.copy(std::string_view("\xC3\xA9\0a", 4)));
  EXPECT_EQ(text(bytes), "b'\\xc3\\xa9\\x00a'");
  EXPECT_EQ(text(string("\xC3\xA9")), "'\xC3\xA9'");
}

TEST_F(ValueText, PrintsAsPythonDoes) {
  Value* tuple = list(ValueKind::kTuple, {integer(1)});
  EXPECT_EQ(text(list(ValueKind::kDict, {string("a'b"), list(ValueKind::kList, {integer(-2), tuple})})),
            "{'a\\'b': [-2, (1,)]}");
}

TEST_F(ValueText, PrintsCalls) {
  Value* size = make_call(arena_, make_global(arena_, "torch", "Size"),
                          std::array<Value*, 1>{list(ValueKind::kTuple, {integer(2), integer(3)})});
  EXPECT_EQ(text(size), "torch.Size((2, 3))");
}

TEST_F(ValueText, CutsAtItsLimit) { EXPECT_EQ(text(string(std::string(1000, 'x')), 5), "'xxxx..."); }

TEST_F(ValueText, PrintsIntegersPast64Bits) {
  EXPECT_EQ(text(huge(std::string("\0\0\0\0\0\0\0\0\1", 9))), "18446744073709551616");
  EXPECT_EQ(text(huge(std::string("\0\0\0\0\0\0\0\0\xFF", 9))), "-18446744073709551616");
}

TEST_F(ValueText, EndsOnACycle) {
  std::vector<Value*> items(1);
  Value* loop = make_list(arena_, ValueKind::kList, items);
  loop->items()[0] = loop;
  EXPECT_NE(text(loop).find("..."), std::string::npos);
}

TEST_F(ValueText, JsonHoldsExactIntegersAsNumbers) {
  EXPECT_EQ(json(integer(std::int64_t{1} << 53)), "9007199254740992");
  EXPECT_EQ(json(integer((std::int64_t{1} << 53) + 1)), "\"9007199254740993\"");
}

TEST_F(ValueText, JsonOfAContainerIsNull) { EXPECT_EQ(json(list(ValueKind::kList, {})), "null"); }

TEST_F(ValueText, CutsNoCharacter) { EXPECT_EQ(text(string("\xC3\xA9\xC3\xA9"), 4), "'\xC3\xA9..."); }

TEST_F(ValueText, IsPrintedWholeInPiecesThatCutNoCharacter) {
  std::string accents;
  for (int i = 0; i < 10'000; ++i) accents += "\xC3\xA9";
  std::string printed;
  WholeText(catalog_, string("x" + accents)).print([&](std::string_view piece) {
    EXPECT_NE(static_cast<unsigned char>(piece.front()) & 0xC0, 0x80);
    printed += piece;
  });
  EXPECT_EQ(printed, "'x" + accents + "'");
}

TEST_F(ValueText, OfAValueThatRepeatsItselfIsRefusedWithBothNumbers) {
  catalog_.files.push_back({"a.pt", 1000, -1});
  Value* value = string(std::string(100, 'x'));
  for (int depth = 0; depth < 6; ++depth) value = list(ValueKind::kList, std::vector<Value*>(50, value));
  const Error error = test::error_of([&] { WholeText(catalog_, value); });
  EXPECT_EQ(error.code(), ErrorCode::kCorruption);
  EXPECT_EQ(error.why(),
            "the text is longer than 16841216 bytes, the files have 1000: the object repeats parts of itself");
}

}  // namespace
}  // namespace shard::app
