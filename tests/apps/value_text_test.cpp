#include "apps/shardctl/value_text.h"

#include <gtest/gtest.h>

#include <array>
#include <sstream>

namespace shard::app {
namespace {

class ValueText : public testing::Test {
 protected:
  Value* integer(std::int64_t number) { return make_int(arena_, number); }
  Value* string(std::string_view text) { return make_string(arena_, text); }
  Value* list(ValueKind kind, std::vector<Value*> items) { return make_list(arena_, kind, items); }
  Value* huge(std::string_view bytes) {
    Value* value = make_value(arena_, ValueKind::kLong);
    value->text = arena_.copy(bytes);
    return value;
  }
  std::string text(const Value* value, std::size_t limit = 1000) { return value_text(catalog_, value, limit); }
  static std::string json(const Value* value) {
    std::ostringstream out;
    {
      TextSink sink(out);
      JsonWriter writer(sink);
      write_value(writer, value);
    }
    return out.str();
  }

  Arena arena_;
  Catalog catalog_;
};

TEST_F(ValueText, PrintsBytesAsAsciiAndTextAsItIs) {
  Value* bytes = make_value(arena_, ValueKind::kBytes);
  bytes->text = arena_.copy(std::string_view("\xC3\xA9\0a", 4));
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
  loop->items[0] = loop;
  EXPECT_NE(text(loop).find("..."), std::string::npos);
}

TEST_F(ValueText, JsonHoldsExactIntegersAsNumbers) {
  EXPECT_EQ(json(integer(std::int64_t{1} << 53)), "9007199254740992");
  EXPECT_EQ(json(integer((std::int64_t{1} << 53) + 1)), "\"9007199254740993\"");
}

TEST_F(ValueText, JsonOfAContainerIsNull) { EXPECT_EQ(json(list(ValueKind::kList, {})), "null"); }

TEST_F(ValueText, FingerprintTellsTypesApart) {
  EXPECT_NE(value_fingerprint(catalog_, integer(1)), value_fingerprint(catalog_, string("1")));
  EXPECT_EQ(value_fingerprint(catalog_, integer(1)), value_fingerprint(catalog_, integer(1)));
}

}  // namespace
}  // namespace shard::app
