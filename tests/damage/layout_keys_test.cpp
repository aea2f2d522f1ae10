// A layout document with every key gone, of every wrong type, and out of range.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "libshard/core/error.h"
#include "libshard/map/documents/layout_document.h"

namespace shard {
namespace {

using ::testing::HasSubstr;

const std::string kGood =
    R"({"schema":"shardctl.layout/1","name":"x","mesh":{"dp":2,"tp":4},"files":{"path":"r{tp}.pt"},)"
    R"("rules":[{"id":"q","match":".*","shard":[{"axis":"tp","dim":0}]}]})";

std::string layout_with(std::string text, const std::string& from, const std::string& to) {
  return text.replace(text.find(from), from.size(), to);
}

struct Row {
  const char* from;
  const char* to;
  const char* words;
  ErrorCode code = ErrorCode::kInvalidArgument;
};

const Row kRows[] = {
    {R"("schema":"shardctl.layout/1",)", "", "wrong schema"},
    {R"("shardctl.layout/1")", "1", "the document.schema is not a string"},
    {R"("shardctl.layout/1")", R"("shardctl.layout/2")", "wrong schema"},
    {R"("name":"x")", R"("name":[])", "the document.name is not a string"},
    {R"("name":"x")", R"("name":null)", "the document.name is not a string"},
    {R"("name":"x")", R"("nam":"x")", "key 'nam' of the document is not supported", ErrorCode::kUnsupported},
    {R"("mesh":{"dp":2,"tp":4},)", "", "the document has no key 'mesh'"},
    {R"({"dp":2,"tp":4})", "[2,4]", "mesh is not an object of axes and sizes"},
    {R"({"dp":2,"tp":4})", "null", "mesh is not an object of axes and sizes"},
    {R"({"dp":2,"tp":4})", "{}", "mesh is not an object of axes and sizes"},
    {R"("dp":2)", R"("tp":2)", "the key 'tp' appears twice"},
    {R"("dp":2)", R"("dp":"2")", "mesh.dp is not a size"},
    {R"("dp":2)", R"("dp":0)", "mesh.dp is not a size"},
    {R"("dp":2)", R"("dp":-2)", "mesh.dp is not a size"},
    {R"("dp":2)", R"("dp":2.0)", "mesh.dp is not a size"},
    {R"("dp":2)", R"("dp":18446744073709551616)", "mesh.dp is not a size"},
    {R"("tp":4)", R"("tp":9223372036854775807)", "mesh.tp is not a size"},
    {R"({"path":"r{tp}.pt"})", "[]", "files is not an object"},
    {R"({"path":"r{tp}.pt"})", R"("r.pt")", "files is not an object"},
    {R"("r{tp}.pt")", "5", "files.path is not a string"},
    {R"("path")", R"("root")", "key 'root' of the document.files is not supported", ErrorCode::kUnsupported},
    {R"([{"id":"q","match":".*","shard":[{"axis":"tp","dim":0}]}])", "{}", "rules is not a list"},
    {R"({"id":"q","match":".*","shard":[{"axis":"tp","dim":0}]})", "[]", "rules[0] is not an object"},
    {R"("id":"q")", R"("id":7)", "rules[0].id is not a string"},
    {R"("match":".*",)", "", "rules[0] has no key 'match'"},
    {R"("match":".*")", R"("match":{})", "rules[0].match is not a string"},
    {R"("match":".*")", R"("match":"[")", "rules[0].match is not a regular expression"},
    {R"("match":".*")", R"("match":"(a{1000}){1000}")", "rules[0].match is not a regular expression"},
    {R"("match":".*")", R"("march":".*")", "key 'march' of the document.rules[0] is not supported",
     ErrorCode::kUnsupported},
    {R"([{"axis":"tp","dim":0}])", R"({"axis":"tp","dim":0})", "rules[0].shard is not a list"},
    {R"([{"axis":"tp","dim":0}])", R"(["tp"])", "rules[0].shard[0] is not an object"},
    {R"("axis":"tp",)", "", "rules[0].shard[0] has no key 'axis'"},
    {R"("axis":"tp")", R"("axis":1)", "rules[0].shard[0].axis is not a string"},
    {R"("axis":"tp")", R"("axis":"pp")", "rules[0].shard[0].axis names the axis 'pp', which mesh lacks"},
    {R"({"axis":"tp","dim":0})", R"({"axis":"tp","dim":0},{"axis":"tp","dim":1})",
     "rules[0].shard[1] names the axis 'tp' a second time"},
    {R"(,"dim":0)", "", "rules[0].shard[0] has no key 'dim'"},
    {R"("dim":0)", R"("dim":"0")", "rules[0].shard[0].dim is not a dimension"},
    {R"("dim":0)", R"("dim":0.0)", "rules[0].shard[0].dim is not a dimension"},
    {R"("dim":0)", R"("dim":64)", "rules[0].shard[0].dim is not a dimension"},
    {R"("dim":0)", R"("dim":-65)", "rules[0].shard[0].dim is not a dimension"},
    {R"("dim":0)", R"("dim":-9223372036854775808)", "rules[0].shard[0].dim is not a dimension"},
    {R"("dim":0)", R"("dim":0,"split":3)", "rules[0].shard[0].split is not a string"},
    {R"("dim":0)", R"("dim":0,"split":"evenly")", "rules[0].shard[0].split is not one of"},
    {R"("dim":0)", R"("dim":0,"split":"widths")", "rules[0].shard[0]: widths and split"},
    {R"("dim":0)", R"("dim":0,"widths":[1,2,3,4])", "rules[0].shard[0]: widths and split"},
    {R"("dim":0)", R"("dim":0,"split":"even","widths":[1,2,3,4])", "rules[0].shard[0]: widths and split"},
    {R"("dim":0)", R"("dim":0,"split":"widths","widths":[])", "rules[0].shard[0].widths is not a list of widths"},
    {R"("dim":0)", R"("dim":0,"split":"widths","widths":4)", "rules[0].shard[0].widths is not a list"},
    {R"("dim":0)", R"("dim":0,"split":"widths","widths":[1,2,3])",
     "rules[0].shard[0].widths is not a list of one width for each part"},
    {R"("dim":0)", R"("dim":0,"split":"widths","widths":[1,2,3,-1])", "rules[0].shard[0].widths: -1 is not a width"},
    {R"("dim":0)", R"("dim":0,"split":"widths","widths":[1,2,3,9223372036854775807])",
     "rules[0].shard[0].widths: 9223372036854775807 is not a width"},
    {R"("dim":0)", R"("dim":0,"split":"widths","widths":[1,2,3,null])",
     "rules[0].shard[0].widths[3] is not an integer"},
    {R"("dim":0)", R"("dim":0,"split":"widths","widths":[1,2,3,"2 *"])", "rules[0].shard[0].widths[3]: "},
    {R"("dim":0)", R"("dim":0,"split":"widths","widths":[1,2,3,"pp"])",
     "rules[0].shard[0].widths names 'pp', which is not an axis of mesh"},
    {R"("dim":0)", R"("dim":0,"split":"even","split_factor":2)",
     "rules[0].shard[0]: split and split_factor contradict each other"},
    {R"("dim":0)", R"("dim":0,"fill":"zero")", "key 'fill' of the document.rules[0].shard[0] is not supported",
     ErrorCode::kUnsupported},
};

Error error_of_layout(const std::string& text) {
  try {
    parse_layout_document(text, "layout.json");
  } catch (const Error& error) {
    return error;
  }
  return Error(ErrorCode::kInterrupted, "it was read");
}

TEST(LayoutKeys, TheRightOneIsRead) { EXPECT_EQ(error_of_layout(kGood).code(), ErrorCode::kInterrupted); }

TEST(LayoutKeys, EachIsRefusedByName) {
  for (const Row& row : kRows) {
    const Error error = error_of_layout(layout_with(kGood, row.from, row.to));
    EXPECT_EQ(code_name(error.code()), code_name(row.code)) << row.to << ": " << error.what();
    EXPECT_THAT(error.what(), HasSubstr(row.words)) << row.from << " -> " << row.to;
    EXPECT_EQ(error.file(), "layout.json");
  }
}

TEST(LayoutKeys, CutAnywhereItIsRefused) {
  for (std::size_t size = 0; size < kGood.size(); ++size) {
    EXPECT_EQ(code_name(error_of_layout(kGood.substr(0, size)).code()), "invalid_argument") << size;
  }
}

TEST(LayoutKeys, PatternsThatAreTooLargeTogetherAreRefused) {
  std::string rules;
  for (int i = 0; i < 1000; ++i) rules += R"({"match":"x.{900}"},)";
  const std::string text = R"({"schema":"shardctl.layout/1","mesh":{"a":2},"rules":[)" + rules + R"({"match":"y"}]})";
  const Error error = error_of_layout(text);
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(error.what(), HasSubstr("the patterns of the document are too large"));
}

}  // namespace
}  // namespace shard
