#include "libshard/core/python_text.h"

#include <gtest/gtest.h>

#include <string>

namespace shard {
namespace {

TEST(PythonRepr, QuotesAsPythonDoes) {
  EXPECT_EQ(python_repr("a", false), "'a'");
  EXPECT_EQ(python_repr("it's", false), "\"it's\"");
  EXPECT_EQ(python_repr("it's \"so\"", false), "'it\\'s \"so\"'");
}

TEST(PythonRepr, EscapesWhatIsNotShown) {
  EXPECT_EQ(python_repr("\n\r\t\\\x01\x7F", false), "'\\n\\r\\t\\\\\\x01\\x7f'");
  EXPECT_EQ(python_repr("\xC3\xBC", false), "'\xC3\xBC'");
}

TEST(PythonRepr, ShowsBytesPastAsciiAsNumbers) { EXPECT_EQ(python_repr("\xC3z", true), "b'\\xc3z'"); }

TEST(IntegerText, IsDecimal) {
  EXPECT_EQ(integer_text(""), "0");
  EXPECT_EQ(integer_text("\xFF"), "-1");
  EXPECT_EQ(integer_text(std::string(8, '\0') + '\x40'), "1180591620717411303424");
  EXPECT_EQ(integer_text(std::string(8, '\0') + '\xC0'), "-1180591620717411303424");
}

TEST(IntegerText, SaysTheSizeOfVeryLongOnes) {
  EXPECT_EQ(integer_text(std::string(1000, '\x01')), "<int of 1000 bytes>");
}

TEST(RealText, KeepsAPointInWholeNumbers) { EXPECT_EQ(real_text(10.0), "10.0"); }

}  // namespace
}  // namespace shard
