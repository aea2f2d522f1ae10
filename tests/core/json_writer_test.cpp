#include "libshard/core/json_writer.h"

#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

namespace shard {

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

TEST(JsonWriter, WritesTextsOfAnyLength) {
  for (const std::size_t length : {0U, 1U, 120U, 124U, 125U, 126U, 127U, 128U, 129U, 100'000U}) {
    const std::string name(length, 'k');
    EXPECT_EQ(written([&](JsonWriter& json) {
                json.begin_object();
                json.key(name), json.string(name);
                json.key(name), json.literal(name);
                json.end_object();
              }),
              "{\"" + name + "\": \"" + name + "\", \"" + name + "\": " + name + "}");
  }
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
    JsonWriter json(out, {JsonEscapes::kInHtml});
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

std::string styled(std::string_view text, JsonStyle style) {
  std::string out;
  JsonWriter(out, style).string(text);
  return out;
}

TEST(JsonWriter, AsPythonWritesOnlyAscii) {
  EXPECT_EQ(styled("a\b\f\x7f\"\u00e9\U0001F600/", kPythonJson), R"("a\b\f\u007f\"\u00e9\ud83d\ude00/")");
}

TEST(JsonWriter, WithoutEscapesKeepsAllButControls) {
  EXPECT_EQ(styled("a\b\x01\x7f\u00e9\xC2\x9B<", {JsonEscapes::kNone}), "\"a\\b\\u0001\x7f\u00e9\xC2\x9B<\"");
}

TEST(JsonWriter, CompactHasNoSpaces) {
  std::string out;
  JsonWriter json(out, {JsonEscapes::kNone, true});
  json.begin_object();
  json.key("a"), json.begin_array(), json.number(1), json.number(-2), json.end_array();
  json.member_name("b"), json.null();
  json.end_object();
  EXPECT_EQ(out, R"({"a":[1,-2],"b":null})");
}

TEST(JsonWriter, ListsHaveAnItemForEach) {
  std::string out;
  JsonWriter json(out);
  const std::array<int, 2> items{1, 2};
  json.begin_object();
  json.key("list"), json.list(items, [&](int item) { json.number(item); });
  json.key("objects"), json.objects(items, [&](int item) { json.key("n"), json.number(item); });
  json.key("lines"), json.object_lines(2, items, [&](int item) { json.key("n"), json.number(item); });
  json.key("none"), json.objects(std::array<int, 0>(), [&](int) { json.null(); });
  json.end_object();
  EXPECT_EQ(out,
            "{\"list\": [1, 2], \"objects\": [{\"n\": 1}, {\"n\": 2}], \"lines\": [\n  {\"n\": 1},\n  {\"n\": 2}], "
            "\"none\": []}");
}

TEST(JsonWriter, DocumentsBeginWithTheirSchemaAndEndTheLine) {
  std::string out;
  JsonWriter json(out);
  json.document("shardctl.x/1", [&] { json.key("a"), json.number(1); });
  EXPECT_EQ(out, "{\"schema\": \"shardctl.x/1\", \"a\": 1}\n");
}

TEST(JsonWriter, EndsLinesBeforeClosingBrackets) {
  std::string out;
  JsonWriter json(out);
  json.begin_object();
  json.line(2);
  json.key("a"), json.number(1);
  json.end_line();
  json.end_object();
  json.end_line();
  EXPECT_EQ(out, "{\n  \"a\": 1\n}\n");
}

TEST(JsonWriter, AnyBytesAreReplacedAsByAReferenceWriter) {
  std::mt19937 random(5);
  const std::string_view likely("ab\"\\\n\x1f\x7f\x80\xBF\xC2\xE0\xA0\xE2\x82\xED\x9F\xEF\xBF\xF0\x90\x98\xF4\x8F\xFF");
  for (int i = 0; i < 20'000; ++i) {
    std::string text(random() % 9, 0);
    for (char& c : text) c = random() % 4 == 0 ? static_cast<char>(random()) : likely[random() % likely.size()];
    const nlohmann::json value(text);
    constexpr auto kReplace = nlohmann::json::error_handler_t::replace;
    ASSERT_EQ(styled(text, kPythonJson), value.dump(-1, ' ', true, kReplace));
    ASSERT_EQ(styled(text, {JsonEscapes::kNone}), value.dump(-1, ' ', false, kReplace));
  }
}

TEST(JsonWriter, AStreamReceivesLongDocumentsWhole) {
  const std::string text(300'000, 'x');
  EXPECT_EQ(string_of(text), "\"" + text + "\"");
}

}  // namespace
}  // namespace shard
