#include "libshard/core/utf8.h"

#include <gtest/gtest.h>

namespace shard {
namespace {

TEST(Utf8, RefusesWhatIsNoCharacter) {
  for (const char* text :
       {"\xFF", "a\x80", "\xC0\x80", "\xE0\x80\x80", "\xED\xA0\x80", "\xF4\x90\x80\x80", "12345678\xC3"}) {
    EXPECT_FALSE(is_utf8(text)) << text;
    EXPECT_EQ(is_python_utf8(text), std::string_view(text) == "\xED\xA0\x80") << text;  // An encoded surrogate.
  }
}

TEST(Utf8, AcceptsTextOfAnyLength) {
  for (const char* text : {"", "a", "1234567", "12345678", "123456789", "1234567\u00e9", "\u6a29\U0001F600 12345678"}) {
    EXPECT_TRUE(is_utf8(text)) << text;
  }
}

TEST(Utf8, AnInterruptedCharacterIsOneReplacement) {
  EXPECT_EQ(invalid_prefix("\xE2\x82z"), 2U);
  EXPECT_EQ(invalid_prefix("\xF0\x9F\x98"), 3U);
  EXPECT_EQ(invalid_prefix("\xE0\x80\x80"), 1U);
  EXPECT_EQ(invalid_prefix("\xFFz"), 1U);
}

}  // namespace
}  // namespace shard
