#include "apps/shardctl/text/json_writer.h"

#include <gtest/gtest.h>

#include <limits>
#include <sstream>

namespace shard::app {
namespace {

template <class Write>
std::string written(const Write& write) {
  std::ostringstream out;
  {
    JsonWriter json(out);
    write(json);
  }
  return out.str();
}

std::string string_of(std::string_view text) {
  return written([&](JsonWriter& json) { json.string(text); });
}

TEST(JsonWriter, NestsObjectsAndArrays) {
  EXPECT_EQ(written([](JsonWriter& json) {
              json.begin_object();
              json.key("a"), json.number(1);
              json.key("b"), json.begin_array(), json.boolean(true), json.null(), json.end_array();
              json.key("c"), json.begin_object(), json.end_object();
              json.end_object();
            }),
            R"({"a": 1, "b": [true, null], "c": {}})");
}

TEST(JsonWriter, StartsItemsOnLines) {
  EXPECT_EQ(written([](JsonWriter& json) {
              json.begin_array();
              json.line(1), json.number(1);
              json.line(1), json.number(2);
              json.end_array();
            }),
            "[\n 1,\n 2]");
}

TEST(JsonWriter, EscapesWhatAStringMustNotHold) {
  EXPECT_EQ(string_of("a\"b\\c\n\t\r\x01\x7f"), R"("a\"b\\c\n\t\r\u0001\u007f")");
}

TEST(JsonWriter, KeepsUtf8) { EXPECT_EQ(string_of("für 権"), "\"für 権\""); }

TEST(JsonWriter, ReplacesEncodedSurrogates) { EXPECT_EQ(string_of("\xED\xA0\x80!"), "\"\xEF\xBF\xBD!\""); }

TEST(JsonWriter, ReplacesBytesThatAreNotUtf8) { EXPECT_EQ(string_of("a\xFFz\xC3"), "\"a\xEF\xBF\xBDz\xEF\xBF\xBD\""); }

TEST(JsonWriter, ReplacesOverlongForms) {
  EXPECT_EQ(string_of("\xE0\x80\x80"), "\"\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\"");
}

TEST(JsonWriter, InsideHtmlNoStringHoldsMarkup) {
  std::ostringstream out;
  {
    JsonWriter json(out, JsonPlace::kInHtml);
    json.begin_object();
    json.member_name("</script>"), json.string("<!--&amp;\u2028\u202e\"'");
    json.end_object();
  }
  EXPECT_EQ(out.str(), R"({"\u003c/script\u003e": "\u003c!--\u0026amp;\u2028\u202e\"'"})");
}

TEST(JsonWriter, AloneKeepsMarkup) { EXPECT_EQ(string_of("<&>"), R"("<&>")"); }

TEST(JsonWriter, WritesNanAndInfinityAsStrings) {
  const double inf = std::numeric_limits<double>::infinity();
  EXPECT_EQ(written([&](JsonWriter& json) {
              json.begin_array();
              json.real(inf), json.real(-inf), json.real(std::numeric_limits<double>::quiet_NaN()), json.real(0.5);
              json.end_array();
            }),
            R"(["inf", "-inf", "nan", 0.5])");
}

TEST(RealText, KeepsAPointInWholeNumbers) { EXPECT_EQ(real_text(10), "10.0"); }

TEST(JsonWriter, EscapesControlsPastAscii) {
  EXPECT_EQ(string_of("\xC2\x9B\xE2\x80\xAE\xD8\x9C\xE2\x80\xA8"), R"("\u009b\u202e\u061c\u2028")");
}

TEST(JsonWriter, EscapesNamesOfMembersToo) {
  EXPECT_EQ(written([](JsonWriter& json) {
              json.begin_object();
              json.member_name("\xC2\x9B"), json.null();
              json.end_object();
            }),
            R"({"\u009b": null})");
}

TEST(JsonWriter, TakesAStringInPieces) {
  EXPECT_EQ(written([](JsonWriter& json) {
              json.begin_string();
              json.piece("a\n"), json.piece("b");
              json.end_string();
            }),
            R"("a\nb")");
}

}  // namespace
}  // namespace shard::app
