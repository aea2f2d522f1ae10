#include "libshard/core/numpy_values.h"

#include <gtest/gtest.h>

#include "libshard/catalog/tree.h"
#include "libshard/core/value_equality.h"
#include "tests/formats/pickle_text.h"

namespace shard::pickle {
namespace {

using namespace shard::testing;

std::string word(const std::string& text) {
  return "X" + std::string(1, static_cast<char>(text.size())) + "\0\0\0"s + text;
}
std::string dtype(const std::string& code, const std::string& order = "<") {
  return "cnumpy\ndtype\n(" + word(code) + "\x89\x88tR(K\x03" + word(order) +
         "NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\0tb"s;
}
std::string bytes(const std::string& text) { return "c_codecs\nencode\n(" + word(text) + word("latin1") + "tR"; }

struct Found {
  Arena arena;
  std::string text;
  std::optional<NumpyValue> value;
  explicit Found(const std::string& body) : text("\x80\x02" + body + ".") { value = as_numpy(*load_text(arena, text)); }
};

TEST(NumpyValues, ScalarsOfBothModuleNames) {
  for (const char* core : {"core", "_core"}) {
    const Found found("cnumpy."s + core + ".multiarray\nscalar\n(" + dtype("f8") + bytes("abcdefgh") + "tR");
    ASSERT_TRUE(found.value) << core;
    EXPECT_EQ(numpy_type_name(*found.value), "numpy.float64");
    EXPECT_EQ(numpy_summary(*found.value), "float64");
    EXPECT_EQ(found.value->bytes, "abcdefgh");
  }
}

TEST(NumpyValues, ArraysHaveAShape) {
  const Found found("cnumpy._core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\0\x85"s + bytes("b") +
                    "tR(K\x01K\x02K\x03\x86" + dtype("i2", ">") + "\x88" + bytes("abcdefghijkl") + "tb");
  ASSERT_TRUE(found.value);
  EXPECT_EQ(numpy_type_name(*found.value), "numpy.ndarray");
  EXPECT_EQ(numpy_summary(*found.value), "int16[2, 3]");
  EXPECT_TRUE(found.value->big_endian);
  EXPECT_TRUE(found.value->column_major);
}

TEST(NumpyValues, BuffersOfProtocol5) {
  const Found found("cnumpy._core.numeric\n_frombuffer\n(" + bytes("abcd") + dtype("u1") + "K\x04\x85" + word("C") +
                    "tR");
  ASSERT_TRUE(found.value);
  EXPECT_EQ(numpy_summary(*found.value), "uint8[4]");
  EXPECT_FALSE(found.value->column_major);
}

TEST(NumpyValues, DtypesAndStrings) {
  EXPECT_EQ(numpy_type_name(*Found(dtype("f4")).value), "numpy.dtype");
  EXPECT_EQ(numpy_summary(*Found(dtype("f4")).value), "float32");
  const Found text("cnumpy.core.multiarray\nscalar\n(" + dtype("U5") + bytes("abcdefghijabcdefghij") + "tR");
  EXPECT_EQ(numpy_type_name(*text.value), "numpy.str_");
}

std::optional<std::string> text_of_scalar(const std::string& code, const std::string& elements,
                                          const std::string& order = "<") {
  const Found found("cnumpy.core.multiarray\nscalar\n(" + dtype(code, order) + bytes(elements) + "tR");
  return found.value ? numpy_text(*found.value) : std::nullopt;
}

TEST(NumpyValues, TextsOfScalarsAsPythonPrintsThem) {
  EXPECT_EQ(text_of_scalar("i8", "\3\0\0\0\0\0\0\0"s), "3");
  EXPECT_EQ(text_of_scalar("i2", "\0\3"s, ">"), "3");
  EXPECT_EQ(text_of_scalar("u1", "\xC3\xBF"), "255");  // The byte 0xFF in UTF-8.
  EXPECT_EQ(text_of_scalar("b1", "\1"), "True");
  EXPECT_EQ(text_of_scalar("f4", "\0\0\0\x3F"s), "0.5");
  EXPECT_EQ(text_of_scalar("f8", "\0\0\0\0\0\0\x08\x40"s), "3.0");
  EXPECT_EQ(text_of_scalar("U2", "a\0\0\0\x29\x6A\0\0"s), "a\u6a29");
  EXPECT_EQ(text_of_scalar("S2", "ab"), "b'ab'");
  EXPECT_EQ(text_of_scalar("f2", "ab"), std::nullopt);
  EXPECT_EQ(text_of_scalar("f4", "a"), std::nullopt);
  EXPECT_EQ(text_of_scalar("U1", "abc"), std::nullopt);
}

TEST(NumpyValues, KeysHaveTheirText) {
  Arena arena;
  const std::string scalar = "cnumpy.core.multiarray\nscalar\n(" + dtype("i4") + bytes("\7\0\0\0"s) + "tR";
  EXPECT_EQ(text_of_key(*load_text(arena, "\x80\x02" + scalar + ".")), "7");
}

/// An array of shape 2 x 3 x 1 with the two bytes of each element.
std::string array(const std::string& module, const std::string& order, bool column_major, const std::string& elements) {
  return "c" + module + "\n_reconstruct\n(cnumpy\nndarray\nK\0\x85"s + bytes("b") + "tR(K\1K\2K\3K\1\x87" +
         dtype("i2", order) + (column_major ? "\x88" : "\x89") + bytes(elements) + "tb";
}

TEST(NumpyValues, EqualElementsAreEqualInAnyOrder) {
  Arena arena;
  const std::string one = "\x80\2" + array("numpy.core.multiarray", "<", false, "a0b1c2d3e4f5") + ".";
  const auto equals = [&](const std::string& order, bool column_major, const std::string& elements) {
    const std::string other = "\x80\2" + array("numpy._core.multiarray", order, column_major, elements) + ".";
    return ValueEquality().is_equal(*load_text(arena, one), *load_text(arena, other));
  };
  EXPECT_TRUE(equals("<", false, "a0b1c2d3e4f5"));
  EXPECT_TRUE(equals("<", true, "a0d3b1e4c2f5"));
  EXPECT_TRUE(equals(">", true, "0a3d1b4e2c5f"));
  EXPECT_FALSE(equals("<", true, "a0b1c2d3e4f5"));
  EXPECT_FALSE(equals(">", false, "a0b1c2d3e4f5"));
  EXPECT_FALSE(equals("<", false, "a0b1c2d3e4"));
}

TEST(NumpyValues, ElementsOfObjectsAndTimesAreNone) {
  for (const char* code : {"O8", "V2", "M8", "i", "U0", "x2"}) {
    NumpyValue value;
    value.code = code;
    value.bytes = "ab";
    EXPECT_FALSE(numpy_elements(value)) << code;
  }
}

TEST(NumpyValues, OthersAreNone) {
  EXPECT_FALSE(Found("K\x01").value);
  EXPECT_FALSE(Found("cnumpy.core.multiarray\nscalar\n)R").value);
  EXPECT_FALSE(Found("cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\0\x85NtR"s).value);
}

TEST(NumpyValues, GlobalsAreKnownUnderBothSpellings) {
  for (const char* module : {"numpy.core.multiarray", "numpy._core.multiarray"}) {
    EXPECT_TRUE(is_known_global(module, "scalar")) << module;
    EXPECT_TRUE(is_known_global(module, "_reconstruct")) << module;
  }
  EXPECT_TRUE(is_known_global("numpy.core.numeric", "_frombuffer"));
  EXPECT_TRUE(is_known_global("numpy._core.numeric", "_frombuffer"));
  EXPECT_FALSE(is_known_global("numpy", "load"));
}

}  // namespace
}  // namespace shard::pickle
