// Every argument of the calls that rebuild tensors, and every part of a storage's persistent id, made wrong in turn.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "formats/torch/tensor_pickle.h"
#include "tests/formats/torch_files.h"

namespace shard {
namespace {

using namespace std::string_literals;
using ::testing::HasSubstr;
using Parts = std::vector<std::string>;

std::string text(const std::string& value) {
  return "X" + std::string(1, static_cast<char>(value.size())) + "\0\0\0"s + value;
}
std::string number(std::int64_t value) {
  std::string raw(8, '\0');
  std::memcpy(raw.data(), &value, 8);
  return "\x8a\x08" + raw;
}
std::string global(const std::string& module, const std::string& name) { return "c" + module + "\n" + name + "\n"; }
std::string tuple(const Parts& parts) {
  std::string all = "(";
  for (const std::string& part : parts) all += part;
  return all + "t";
}
std::string numbers(const std::vector<std::int64_t>& values) {
  Parts parts;
  for (const std::int64_t value : values) parts.push_back(number(value));
  return tuple(parts);
}

const std::string kHooks = global("collections", "OrderedDict") + ")R";
const Parts kId{text("storage"), global("torch", "FloatStorage"), text("0"), text("cpu"), number(4)};
const Parts kV2{tuple(kId) + "Q", number(0), numbers({2, 2}), numbers({2, 1}), "\x89", kHooks};

Parts with(Parts parts, std::size_t at, const std::string& part) {
  parts.at(at) = part;
  return parts;
}
std::string call(const std::string& function, const Parts& arguments) {
  return global("torch._utils", function) + tuple(arguments) + "R";
}

/// A torch.save file with data/0 of 16 bytes whose pickle is a dict {"w": body}.
Error error_of(const std::string& body) {
  testing::MemoryFiles files;
  files.put("/x.pt", testing::pack({{"data.pkl", "\x80\x02}" + text("w") + body + "s."},
                                    {"byteorder", "little"},
                                    {"data/0", std::string(16, 'd')},
                                    {"version", "3\n"}}));
  try {
    testing::located(*files.open("/x.pt"));
  } catch (const Error& error) {
    return error;
  }
  return Error(ErrorCode::kInterrupted, "it was read");
}

constexpr std::int64_t kHuge = INT64_MAX;

struct Case {
  const char* what;
  std::string body;
  const char* words;
  std::optional<FindingKind> kind = FindingKind::kBadPickle;
  ErrorCode code = ErrorCode::kCorruption;
};

std::string v2(std::size_t at, const std::string& part) { return call("_rebuild_tensor_v2", with(kV2, at, part)); }
std::string id(std::size_t at, const std::string& part) { return v2(0, tuple(with(kId, at, part)) + "Q"); }

const Case kArguments[] = {
    {"storage: a number", v2(0, "K\1"), "its storage is not a persistent id of a storage"},
    {"storage: a list's id", v2(0, "]Q"), "a persistent id of type list, not a tuple"},
    {"storage: the tuple itself", v2(0, tuple(kId)), "its storage is not a persistent id of a storage"},
    {"offset: text", v2(1, text("0")), "tensor's offset: it is not a natural number"},
    {"offset: None", v2(1, "N"), "tensor's offset: it is not a natural number"},
    {"offset: a float", v2(1, "G\0\0\0\0\0\0\0\0"s), "tensor's offset: it is not a natural number"},
    {"offset: negative", v2(1, number(-1)), "tensor's offset: it is not a natural number"},
    {"offset: past the storage", v2(1, number(1)), "extends past the end of its storage '0'",
     FindingKind::kOutOfBounds},
    {"offset: 2^63-1", v2(1, number(kHuge)), "cannot add 9223372036854775807 and 2", std::nullopt},
    {"offset: past 64 bits", v2(1, "\x8a\x09\0\0\0\0\0\0\0\0\1"s), "tensor's offset: it is not a natural number"},
    {"size: a number", v2(2, "K\4"), "tensor's size: it is not a list or a tuple"},
    {"size: texts", v2(2, tuple({text("2"), text("2")})), "tensor's size: it is not a natural number"},
    {"size: bools", v2(2, "\x88\x88\x86"), "tensor's size: it is not a natural number"},
    {"size: negative", v2(2, numbers({-2, 2})), "tensor's size: it is not a natural number"},
    {"size: fewer than strides", v2(2, numbers({2})), "size and stride differ in length"},
    {"size: more than the storage", v2(2, numbers({3, 2})), "extends past the end of its storage '0'",
     FindingKind::kOutOfBounds},
    {"size: a product past 63 bits", v2(2, numbers({kHuge, kHuge})), "shape [9223372036854775807, 9223372036854775807]",
     std::nullopt},
    {"size: 65 dimensions", v2(2, numbers(std::vector<std::int64_t>(65, 1))), "it has 65 dimensions"},
    {"stride: None", v2(3, "N"), "tensor's stride: it is not a list or a tuple"},
    {"stride: negative", v2(3, numbers({2, -1})), "tensor's stride: it is not a natural number"},
    {"stride: more than sizes", v2(3, numbers({2, 1, 1})), "size and stride differ in length"},
    {"stride: past the storage", v2(3, numbers({4, 1})), "extends past the end of its storage '0'",
     FindingKind::kOutOfBounds},
    {"stride: an extent past 63 bits", v2(3, numbers({kHuge, kHuge})),
     "cannot add 9223372036854775807 and 9223372036854775807", std::nullopt},
    {"requires_grad: a number", v2(4, "K\0"s), "tensor's requires_grad: it is not a bool"},
    {"requires_grad: None", v2(4, "N"), "tensor's requires_grad: it is not a bool"},
    {"no arguments", call("_rebuild_tensor_v2", {}), "_rebuild_tensor_v2 with 0 arguments"},
    {"one too few", call("_rebuild_tensor_v2", Parts(kV2.begin(), kV2.end() - 1)),
     "_rebuild_tensor_v2 with 5 arguments"},
    {"two too many", global("torch._utils", "_rebuild_tensor_v2") + tuple({tuple(kV2)}) + "R",
     "_rebuild_tensor_v2 with 1 arguments"},
};

Parts more(Parts parts, std::initializer_list<std::string> others) {
  parts.insert(parts.end(), others);
  return parts;
}

const std::string kUntyped =
    tuple({text("storage"), global("torch.storage", "UntypedStorage"), text("0"), text("cpu"), number(16)}) + "Q";
const std::string kFloat = global("torch", "float32");
std::string v3(const Parts& behind) {
  Parts arguments = with(kV2, 0, kUntyped);
  arguments.insert(arguments.end(), behind.begin(), behind.end());
  return call("_rebuild_tensor_v3", arguments);
}

const Case kVersions[] = {
    {"v2: metadata that is a list", call("_rebuild_tensor_v2", more(kV2, {"]"})),
     "tensor's metadata: it is not a dict"},
    {"v2: a flag that is a number", call("_rebuild_tensor_v2", more(kV2, {"}" + text("conj") + "K\1s"})),
     "tensor's conj: it is not a bool"},
    {"v2: a flag's name that is none", call("_rebuild_tensor_v2", more(kV2, {"}K\1\x88s"})),
     "key of a tensor's metadata: it is not a string"},
    {"v2: an unknown flag", call("_rebuild_tensor_v2", more(kV2, {"}" + text("odd") + "\x88s"})), "metadata 'odd'",
     std::nullopt, ErrorCode::kUnsupported},
    {"v2: eight arguments", call("_rebuild_tensor_v2", more(kV2, {"}", "}"})), "_rebuild_tensor_v2 with 8 arguments"},
    {"v2: a state", call("_rebuild_tensor_v2", kV2) + "}b", "_rebuild_tensor_v2 with 6 arguments"},
    {"v3: no dtype", v3({}), "_rebuild_tensor_v3 with 6 arguments"},
    {"v3: a dtype that is text", v3({text("float32")}), "its dtype is not one of torch's"},
    {"v3: a dtype that is a class", v3({global("torch", "Size")}), "torch.Size", std::nullopt, ErrorCode::kUnsupported},
    {"v3: a wider dtype", v3({global("torch", "float64")}), "extends past the end of its storage '0'",
     FindingKind::kOutOfBounds},
    {"v3: nine arguments", v3({kFloat, "}", "}"}), "_rebuild_tensor_v3 with 9 arguments"},
    {"v3: metadata that is a tuple", v3({kFloat, ")"}), "tensor's metadata: it is not a dict"},
    {"v1: five arguments", call("_rebuild_tensor", Parts(kV2.begin(), kV2.begin() + 5)),
     "_rebuild_tensor with 5 arguments"},
    {"v1: three arguments", call("_rebuild_tensor", Parts(kV2.begin(), kV2.begin() + 3)),
     "_rebuild_tensor with 3 arguments"},
};

const Case kIds[] = {
    {"id: another word", id(0, text("storages")), "a persistent id that is neither of a storage nor of a module"},
    {"id: no word", id(0, "N"), "a persistent id that does not begin with its kind"},
    {"class: text", id(1, text("FloatStorage")), "its storage's class is not a class by name"},
    {"class: a made object", id(1, kHooks), "its storage's class is not a class by name"},
    {"class: a tensor's", id(1, global("torch", "FloatTensor")), "its storage's class is torch.FloatTensor"},
    {"class: another module's", id(1, global("torch.storage", "TypedStorage")),
     "its storage's class is torch.storage.TypedStorage"},
    {"class: wider than the record", id(1, global("torch", "DoubleStorage")),
     "data/0 has 16 bytes, but the pickle records 32", FindingKind::kShapeMismatch},
    {"class: narrower than the record", id(1, global("torch", "HalfStorage")),
     "data/0 has 16 bytes, but the pickle records 8", FindingKind::kShapeMismatch},
    {"key: a number", id(2, "K\0"s), "storage's key: it is not a string"},
    {"key: of no record", id(2, text("1")), "data/1 is missing", FindingKind::kMissingFile},
    {"key: empty", id(2, text("")), "data/ is missing", FindingKind::kMissingFile},
    {"key: a path", id(2, text("../data.pkl")), "data/../data.pkl is missing", FindingKind::kMissingFile},
    {"location: None", id(3, "N"), "storage's location: it is not a string"},
    {"count: text", id(4, text("4")), "storage's size: it is not a natural number"},
    {"count: negative", id(4, number(-4)), "storage's size: it is not a natural number"},
    {"count: 2^62", id(4, number(std::int64_t{1} << 62)), "4611686018427387904 elements of float32", std::nullopt},
    {"count: one more", id(4, number(5)), "data/0 has 16 bytes, but the pickle records 20",
     FindingKind::kShapeMismatch},
    {"count: zero", id(4, number(0)), "extends past the end of its storage '0'", FindingKind::kOutOfBounds},
    {"four parts", v2(0, tuple(Parts(kId.begin(), kId.end() - 1)) + "Q"), "a persistent id of a storage with 4 parts"},
    {"seven parts", v2(0, tuple(more(kId, {"N", "N"})) + "Q"), "its storage is not a persistent id of a storage"},
    {"view: a number", v2(0, tuple(more(kId, {"K\1"})) + "Q"), "its storage's view is not a triple"},
    {"view: a pair", v2(0, tuple(more(kId, {tuple({text("1"), number(0)})})) + "Q"),
     "its storage's view is not a triple"},
    {"view: a negative offset", v2(0, tuple(more(kId, {tuple({text("1"), number(-1), number(4)})})) + "Q"),
     "storage view's offset: it is not a natural number"},
    {"view: past the storage", v2(0, tuple(more(kId, {tuple({text("1"), number(1), number(4)})})) + "Q"),
     "its storage's view extends past the storage"},
    {"view: an overflow", v2(0, tuple(more(kId, {tuple({text("1"), number(kHuge), number(kHuge)})})) + "Q"),
     "cannot add 9223372036854775807 and 9223372036854775807", std::nullopt},
};

void expect_refused(std::span<const Case> cases) {
  for (const Case& bad : cases) {
    const Error error = error_of(bad.body);
    EXPECT_EQ(code_name(error.code()), code_name(bad.code)) << bad.what << ": " << error.what();
    EXPECT_EQ(error.kind(), bad.kind) << bad.what << ": " << error.what();
    EXPECT_THAT(error.what(), HasSubstr(bad.words)) << bad.what;
    EXPECT_EQ(error.file(), "x.pt") << bad.what;
    // Persistent ids are refused as the pickle is read, before it is known whose they are.
    const bool is_in_pickle = std::string_view(error.what()).starts_with("cannot read the pickle at byte");
    EXPECT_EQ(error.tensor(), is_in_pickle ? "" : "w") << bad.what;
  }
}

TEST(TensorCalls, TheRightOneIsRead) {
  EXPECT_EQ(error_of(call("_rebuild_tensor_v2", kV2)).code(), ErrorCode::kInterrupted);
  EXPECT_EQ(error_of(v2(2, "](K\2K\2e")).code(), ErrorCode::kInterrupted);  // A size that is a list, as torch takes it.
  EXPECT_EQ(error_of(v3({kFloat})).code(), ErrorCode::kInterrupted);
  EXPECT_EQ(error_of(call("_rebuild_tensor", Parts(kV2.begin(), kV2.begin() + 4))).code(), ErrorCode::kInterrupted);
}
TEST(TensorCalls, ArgumentsAreRefusedByName) { expect_refused(kArguments); }
TEST(TensorCalls, VersionsAndFlagsAreRefusedByName) { expect_refused(kVersions); }
TEST(TensorCalls, PersistentIdsAreRefusedByName) { expect_refused(kIds); }

/// A Parameter around something wrong: never a tensor of wrong values, never a crash.
TEST(TensorCalls, ParametersThatAreNoneAreObjects) {
  const std::string good = call("_rebuild_tensor_v2", kV2);
  const std::string odd[] = {call("_rebuild_parameter", {}), call("_rebuild_parameter", {good, "K\1", kHooks}),
                             call("_rebuild_parameter", {"N", "\x88", kHooks}),
                             call("_rebuild_parameter", {good, "\x88"})};
  for (const std::string& body : odd) {
    testing::MemoryFiles files;
    files.put("/x.pt",
              testing::pack({{"data.pkl", "\x80\x02}" + text("w") + body + "s."}, {"data/0", std::string(16, 'd')}}));
    const std::unique_ptr<Reader> reader = files.open("/x.pt");
    EXPECT_TRUE(reader->catalog().tensors.empty());
    EXPECT_EQ(reader->catalog().objects.size(), 1U);
  }
  EXPECT_THAT(error_of(call("_rebuild_parameter", {v2(1, number(-1)), "\x88", kHooks})).what(), HasSubstr("offset"));
}

/// Every argument replaced by a value of every kind: read, or refused with a message.
TEST(TensorCalls, AnyValueInAnyPlaceIsReadOrRefused) {
  const Parts values{
      "N", "\x88", "K\1",  number(-1), number(kHuge),           "G\x7f\xf8\0\0\0\0\0\0"s, text("x"),      "]",
      ")", "}",    kHooks, "K\1Q",     global("torch", "Size"), numbers({kHuge, kHuge}),  numbers({0, 0})};
  int read = 0, refused = 0;
  for (const std::string& value : values) {
    for (std::size_t at = 0; at < kV2.size(); ++at) {
      const Error error = error_of(v2(at, value));
      error.code() == ErrorCode::kInterrupted ? ++read : ++refused;
      EXPECT_NE(error.code(), ErrorCode::kInvalidArgument) << error.what();
      EXPECT_NE(error.code(), ErrorCode::kResource) << error.what();
    }
  }
  EXPECT_GT(refused, 60);
  EXPECT_GT(read, 10);
}

}  // namespace
}  // namespace shard
