#include "apps/shardctl/text/text_sink.h"

#include <gtest/gtest.h>

#include <sstream>

namespace shard::app {
namespace {

template <class Write>
std::string written(const Write& write) {
  std::ostringstream out;
  {
    TextSink sink(out);
    write(sink);
  }
  return out.str();
}

std::string shown(std::string_view text) {
  return written([&](TextSink& sink) { sink.add(text); });
}

TEST(TextSink, EscapesControls) { EXPECT_EQ(shown("a\x1b[31mb\n\x07\x7f"), "a\\x1b[31mb\\x0a\\x07\\x7f"); }

TEST(TextSink, EscapesC1ControlsInUtf8AndAsLoneBytes) { EXPECT_EQ(shown("\xC2\x9B!\x9b!"), "\\x9b!\\x9b!"); }

TEST(TextSink, EscapesMarksOfDirectionAndSeparators) {
  EXPECT_EQ(shown("\u202e\u2066\u200f\u061c\u2028\u2029"), "\\u202e\\u2066\\u200f\\u061c\\u2028\\u2029");
}

TEST(TextSink, EscapesSurrogatesAndWhatIsNotUtf8) { EXPECT_EQ(shown("\xED\xA0\x80\xFF\xC3"), "\\ud800\\xff\\xc3"); }

TEST(TextSink, KeepsLetters) { EXPECT_EQ(shown("für 権 \u200b"), "für 権 \u200b"); }

TEST(TextSink, KeepsTheLinesOfTextsThatConsistOfLines) {
  EXPECT_EQ(written([](TextSink& sink) { sink.lines("a\n\tb\r\n"); }), "a\n\tb\\x0d\n");
}

TEST(TextSink, WritesLinesTabsAndColours) {
  EXPECT_EQ(written([](TextSink& sink) {
              sink.painted("1", "a\x1b", true);
              sink.painted("1", "b", false);
              sink.tab();
              sink.line("c");
            }),
            "\x1b[1ma\\x1b\x1b[0mb\tc\n");
}

TEST(TextSink, PassesTextsLargerThanItsBuffer) {
  const std::string large(200'000, 'x');
  EXPECT_EQ(written([&](TextSink& sink) {
              sink.add("a");
              sink.add(large);
              sink.spaces(1);
            }),
            "a" + large + " ");
}

}  // namespace
}  // namespace shard::app
