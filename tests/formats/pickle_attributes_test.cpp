#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/parts/pickle/attributes.h"
#include "tests/formats/pickle_text.h"

namespace shard {
namespace {

using namespace shard::testing;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// An object of a known class with this state.
const Value& object(Arena& arena, const std::string& state) {
  const std::string text =
      "\x80\x04"
      "cargparse\nNamespace\n)R" +
      state + "b.";
  const auto kept = std::make_shared<const std::vector<std::byte>>(bytes_of(text).begin(), bytes_of(text).end());
  arena.adopt(kept);
  return *pickle::load(arena, *kept, known_only());
}
const std::string kX = "}\x8c\1xK\7s";

template <class Read>
std::string message(const Read& read) {
  try {
    read();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kCorruption);
    EXPECT_EQ(error.kind(), FindingKind::kBadPickle);
    return error.what();
  }
  return "it was read";
}

TEST(Attributes, LieInADictOrInSlots) {
  Arena arena;
  EXPECT_EQ(pickle::need(object(arena, kX), "x").number, 7);
  EXPECT_EQ(pickle::need(object(arena, "N" + kX + "\x86"), "x").number, 7);
  EXPECT_EQ(pickle::attribute(object(arena, kX), "y"), nullptr);
  EXPECT_EQ(pickle::attribute(object(arena, "K\1"), "x"), nullptr);
}

TEST(Attributes, AMissingOneIsNamedWithTheClass) {
  Arena arena;
  EXPECT_EQ(message([&] { pickle::need(object(arena, kX), "y"); }),
            "cannot read the pickled Namespace: it has no attribute 'y'");
  EXPECT_EQ(message([&] { pickle::need_class(object(arena, kX), "Shard"); }),
            "cannot read the pickled Shard: found a value of type argparse.Namespace instead");
}

TEST(Attributes, OfAnotherTypeAreRefused) {
  Arena arena;
  const Value& text = *make_string(arena, "a");
  const Value& minus = *make_int(arena, -1);
  EXPECT_THAT(message([&] { pickle::natural(minus, "size"); }), HasSubstr("size: it is not a natural number"));
  EXPECT_THAT(message([&] { pickle::natural(text, "size"); }), HasSubstr("it is not a natural number"));
  EXPECT_THAT(message([&] { pickle::boolean(text, "flag"); }), HasSubstr("flag: it is not a bool"));
  EXPECT_THAT(message([&] { pickle::string(minus, "name"); }), HasSubstr("name: it is not a string"));
  EXPECT_THAT(message([&] { pickle::mapping(minus, "state"); }), HasSubstr("state: it is not a dict"));
  EXPECT_THAT(message([&] { pickle::sequence(minus, "list"); }), HasSubstr("list: it is not a list or a tuple"));
  EXPECT_THAT(message([&] { pickle::dtype(text, "dtype"); }), HasSubstr("is not one of torch's"));
}

TEST(Attributes, SizesComeInEverySpelling) {
  Arena arena;
  const auto dims = [&](const std::string& text) {
    const std::string pickled = "\x80\x04" + text + ".";
    const Dims read = pickle::dims(arena, *load_text(arena, pickled), "size");
    return std::vector<std::int64_t>(read.begin(), read.end());
  };
  EXPECT_THAT(dims("K\2K\3\x86"), ElementsAre(2, 3));
  EXPECT_THAT(dims("](K\2K\3e"), ElementsAre(2, 3));
  EXPECT_THAT(dims("ctorch\nSize\nK\2K\3\x86\x85R"), ElementsAre(2, 3));
  EXPECT_THAT(dims("ctorch\nSize\n)R"), ElementsAre());
}

TEST(Attributes, AnErrorIsNamedOnce) {
  const Error error = pickle::named(pickle::malformed("size", "why").suggest(Remedy::kExclude, "w"), "w");
  EXPECT_STREQ(error.what(), "tensor 'w': cannot read the pickled size: why");
  EXPECT_EQ(error.suggestions().size(), 1U);
  EXPECT_STREQ(pickle::named(error, "v").what(), error.what());
}

}  // namespace
}  // namespace shard
