#include "formats/parts/pickle/numpy_values.h"

#include <gtest/gtest.h>

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
