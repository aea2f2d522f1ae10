#include "libshard/catalog/selection/selection.h"

#include <gtest/gtest.h>

#include "libshard/catalog/selection/casts.h"
#include "libshard/catalog/selection/glob.h"
#include "tests/catalog/build.h"
#include "tests/support/cpu_time.h"
#include "tests/support/expect_error.h"

namespace shard {
namespace {

using test::add_object;
using test::add_tensor;
using test::expect_error;
using test::make_path;
using test::names_of;

using Names = std::vector<std::string>;

Catalog flat_catalog() {
  Catalog catalog;
  for (const char* name : {"model.a.weight", "model.a.bias", "model.b.weight", "head"}) add_tensor(catalog, name, {2});
  add_tensor(catalog, "ids", {2}, DType::kInt64);
  add_object(catalog, "step", make_int(*catalog.arena, 3));
  validate_catalog(catalog);
  return catalog;
}

bool glob_match(std::string_view glob, std::string_view name) {
  GlobSet set;
  set.add(glob);
  return set.matches(name);
}

TEST(Glob, MatchesLiteralNamesWhole) {
  EXPECT_TRUE(glob_match("a.b", "a.b"));
  EXPECT_FALSE(glob_match("a.b", "a.bc"));
  EXPECT_FALSE(glob_match("a.b", "xa.b"));
  EXPECT_TRUE(glob_match("", ""));
}

TEST(Glob, KeepsAStarInsideOnePart) {
  EXPECT_TRUE(glob_match("a.*.w", "a.x.w"));
  EXPECT_TRUE(glob_match("a.*.w", "a..w"));
  EXPECT_FALSE(glob_match("a.*.w", "a.x.y.w"));
  EXPECT_FALSE(glob_match("*", "a.b"));
  EXPECT_TRUE(glob_match("*a*b*", "xaybz"));
}

TEST(Glob, CrossesPartsWithTwoStars) {
  EXPECT_TRUE(glob_match("**", "a.b.c"));
  EXPECT_TRUE(glob_match("a.**.w", "a.x.y.w"));
  EXPECT_TRUE(glob_match("**.w", "a.b.w"));
  EXPECT_FALSE(glob_match("**.w", "w"));
  EXPECT_TRUE(glob_match("**.x*.**y", "a.b.x1.c.d.y"));
}

TEST(Glob, TakesAQuestionMarkForOneCharacterButADot) {
  EXPECT_TRUE(glob_match("a?c", "abc"));
  EXPECT_FALSE(glob_match("a?c", "a.c"));
  EXPECT_FALSE(glob_match("a?c", "ac"));
}

TEST(Glob, TakesClassesRangesAndTheirContrary) {
  EXPECT_TRUE(glob_match("l.[0-3]", "l.2"));
  EXPECT_FALSE(glob_match("l.[0-3]", "l.4"));
  EXPECT_TRUE(glob_match("[qkv]_proj", "k_proj"));
  EXPECT_TRUE(glob_match("[!qk]_proj", "v_proj"));
  EXPECT_FALSE(glob_match("[!qk]_proj", "k_proj"));
  EXPECT_FALSE(glob_match("a[!x]b", "a.b"));
  EXPECT_TRUE(glob_match("[]]", "]"));
  EXPECT_TRUE(glob_match("[a-]", "-"));
}

TEST(Glob, TakesAnOpenBracketWithoutItsCloseForItself) {
  EXPECT_TRUE(glob_match("a[b", "a[b"));
  EXPECT_TRUE(glob_match("[", "["));
  EXPECT_FALSE(glob_match("[", "a"));
}

TEST(Glob, OfANameMatchesOnlyThatName) {
  const GlobSet only({glob_of_name("a[0].*?")});
  EXPECT_TRUE(only.matches("a[0].*?"));
  EXPECT_FALSE(only.matches("a0.xy"));
  EXPECT_EQ(glob_of_name("layers.0"), "layers.0");
  EXPECT_EQ(glob_of_layers("layers.0.w1.[1]."), "layers.*.w1.[[]1].");
}

TEST(Glob, EndsSoonOnPatternsThatInviteBacktracking) {
  std::string glob, name(2000, 'a');
  for (int i = 0; i < 100; ++i) glob += "**a";
  EXPECT_FALSE(glob_match(glob + "b", name));
}

TEST(Glob, ASetNamesAllThatMatchInOrder) {
  const GlobSet set({"a.*", "**", "a.b", "a.*", "b.**", "[ab].?", "a.b*", ""});
  EXPECT_EQ(set.matching("a.b"), (std::vector<std::size_t>{0, 1, 2, 3, 5, 6}));
  EXPECT_EQ(set.matching("b.x.y"), (std::vector<std::size_t>{1, 4}));
  EXPECT_EQ(set.matching(""), (std::vector<std::size_t>{1, 7}));
}

TEST(Glob, AThousandGlobsThatBeginAlikeCostANameLittle) {
  GlobSet set;
  for (int i = 0; i < 20'000; ++i) set.add("*.layers." + std::to_string(i) + ".*");
  const double seconds = test::cpu_seconds([&] {
    for (int i = 0; i < 20'000; ++i) {
      EXPECT_EQ(set.matching("model.layers." + std::to_string(i) + ".w"), std::vector{static_cast<std::size_t>(i)});
    }
  });
  EXPECT_LT(seconds, test::cpu_limit(2));
}

TEST(Select, KeepsEverythingWithoutOptions) {
  const Catalog catalog = flat_catalog();
  const Selection selection = select(catalog, {});
  EXPECT_EQ(names_of(selection.tensors), (Names{"head", "ids", "model.a.bias", "model.a.weight", "model.b.weight"}));
  EXPECT_EQ(names_of(selection.objects), Names{"step"});
  EXPECT_FALSE(selection.renamed);
}

TEST(Select, IncludesThenExcludesBySourceName) {
  const Catalog catalog = flat_catalog();
  const Selection selection = select(catalog, {.include = {"model.**", "head"}, .exclude = {"**.bias"}});
  EXPECT_EQ(names_of(selection.tensors), (Names{"head", "model.a.weight", "model.b.weight"}));
  EXPECT_TRUE(selection.objects.empty());
}

TEST(Select, DropsObjects) {
  const Catalog catalog = flat_catalog();
  EXPECT_TRUE(select(catalog, {.keep_objects = false}).objects.empty());
}

TEST(Select, StripsThenAddsThenRenames) {
  const Catalog catalog = flat_catalog();
  const Selection selection = select(
      catalog,
      {.include = {"model.**"}, .strip_prefix = {"model."}, .add_prefix = {"x."}, .rename = {R"(^x\.(.)\.=y.\1_)"}});
  EXPECT_EQ(names_of(selection.tensors), (Names{"y.a_bias", "y.a_weight", "y.b_weight"}));
  EXPECT_TRUE(selection.renamed);
}

TEST(Select, AppliesEachRuleOnceInItsOrder) {
  Catalog catalog;
  for (const char* name : {"a", "x.y.w", "y.x.v"}) add_tensor(catalog, name, {2});
  validate_catalog(catalog);
  const Selection selection = select(catalog, {.strip_prefix = {"x.", "y."}, .rename = {"c=d", "^a=b", "b=c", "^w=a"}});
  EXPECT_EQ(names_of(selection.tensors), (Names{"a", "c", "x.v"}));
}

TEST(Select, LeavesNamesWithoutThePrefixAsTheyAre) {
  const Catalog catalog = flat_catalog();
  const Selection selection = select(catalog, {.strip_prefix = {"model."}});
  EXPECT_EQ(names_of(selection.tensors), (Names{"a.bias", "a.weight", "b.weight", "head", "ids"}));
}

TEST(Select, RefusesAPrefixThatNoNameHas) {
  const Catalog catalog = flat_catalog();
  expect_error(ErrorCode::kInvalidArgument, "cannot strip prefix 'modul.'",
               [&] { select(catalog, {.strip_prefix = {"modul."}}); });
  expect_error(ErrorCode::kInvalidArgument, "cannot strip an empty prefix",
               [&] { select(catalog, {.strip_prefix = {""}}); });
}

TEST(Select, ReplacesAllMatchesOfARename) {
  const Catalog catalog = flat_catalog();
  const Selection selection = select(catalog, {.include = {"model.**"}, .rename = {R"(\.=/)"}});
  EXPECT_EQ(selection.tensors[0].name, "model/a/bias");
}

TEST(Select, CutsARenameAtTheFirstEqualsThatIsNotEscaped) {
  Catalog catalog;
  add_tensor(catalog, "a=b", {1});
  EXPECT_EQ(select(catalog, {.rename = {R"(a\=b=c=d)"}}).tensors[0].name, "c=d");
}

TEST(Select, RefusesMalformedRenames) {
  const Catalog catalog = flat_catalog();
  for (const char* rule : {"abc", "=x", "(=x", R"(a=\9)"}) {
    expect_error(ErrorCode::kInvalidArgument, "is malformed", [&] { select(catalog, {.rename = {rule}}); });
  }
}

TEST(Select, RefusesNewNamesThatAreNotUtf8) {
  const Catalog catalog = flat_catalog();
  const auto refuses = [&](const SelectionOptions& options) {
    expect_error(ErrorCode::kInvalidArgument, "is not valid UTF-8", [&] { select(catalog, options); });
  };
  refuses({.add_prefix = {"\xff"}});
  refuses({.rename = {"a=\xc3"}});
  Catalog umlaut;
  add_tensor(umlaut, "\xc3\xa4", {1});
  expect_error(ErrorCode::kInvalidArgument, "is not valid UTF-8", [&] { select(umlaut, {.strip_prefix = {"\xc3"}}); });
}

TEST(Select, ChangesNamesThatHaveSurrogates) {
  Catalog catalog;
  add_tensor(catalog, "\xed\xa0\x80.w", {1});
  EXPECT_EQ(select(catalog, {.add_prefix = {"x."}}).tensors[0].name, "x.\xed\xa0\x80.w");
}

TEST(Select, RefusesTwoTensorsWithOneResultingName) {
  const Catalog catalog = flat_catalog();
  expect_error(ErrorCode::kInvalidArgument, "'model.a.weight' and 'model.b.weight' would both be named 'w'",
               [&] { select(catalog, {.rename = {R"(.*weight=w)"}}); });
}

TEST(Select, TheNameOfADamagedTensorDoesNotClash) {
  Catalog catalog = flat_catalog();
  ASSERT_EQ(catalog.tensors[3].name, "model.a.weight");
  catalog.tensors[3].damaged = true;
  EXPECT_EQ(select(catalog, {.rename = {R"(.*weight=w)"}}).tensors.size(), 5U);
}

// --- Paths ---

std::string path_text(Path path) {
  std::string text;
  for (const PathPart& part : path)
    text += "/" + (part.is_index ? std::to_string(part.index) : std::string(part.key()));
  return text;
}

Catalog nested_catalog() {
  Catalog catalog;
  add_tensor(catalog, "model.layers.0.w", {1}, DType::kFloat32, make_path(catalog, {"model", "layers", "0", "w"}));
  add_tensor(catalog, "top", {1});
  validate_catalog(catalog);
  return catalog;
}

TEST(SelectPaths, KeepsTheRestAfterWholePartsThatWereStripped) {
  const Catalog catalog = nested_catalog();
  const Selection selection = select(catalog, {.strip_prefix = {"model.layers."}});
  EXPECT_EQ(selection.tensors[0].name, "0.w");
  EXPECT_EQ(path_text(selection.tensors[0].path), "/0/w");
}

TEST(SelectPaths, KeepsTheLastPartsWhenAPartWasCut) {
  const Catalog catalog = nested_catalog();
  const Selection selection = select(catalog, {.strip_prefix = {"model.lay"}});
  EXPECT_EQ(selection.tensors[0].name, "ers.0.w");
  EXPECT_EQ(path_text(selection.tensors[0].path), "/ers/0/w");
}

TEST(SelectPaths, KeepsTheFirstAndLastPartsThatARenameLeaves) {
  const Catalog catalog = nested_catalog();
  const auto path_after = [&](const char* rule, std::size_t tensor) {
    return path_text(select(catalog, {.rename = {rule}}).tensors[tensor].path);
  };
  EXPECT_EQ(path_after("w$=v", 0), "/model/layers/0/v");
  EXPECT_EQ(path_after("layers=blocks", 0), "/model/blocks/0/w");
  EXPECT_EQ(path_after("layers.0=blocks.1", 0), "/model/blocks.1/w");
  EXPECT_EQ(path_after("^model=net.a", 0), "/net.a/layers/0/w");
  EXPECT_EQ(path_after("model.layers=m.h", 0), "/m/h/0/w");
  EXPECT_EQ(path_after("0.w=1", 0), "/model/layers.1");  // A list has no keys.
  EXPECT_EQ(path_after("layers.0.=", 0), "/model/w");
  EXPECT_EQ(path_after("top=model.top", 1), "/model/top");
  EXPECT_EQ(path_after(R"(\.=/)", 0), "");
}

TEST(SelectPaths, NestsAddedPrefixesInANestedSource) {
  const Catalog catalog = nested_catalog();
  const Selection selection = select(catalog, {.add_prefix = {"a.b."}});
  EXPECT_EQ(path_text(selection.tensors[0].path), "/a/b/model/layers/0/w");
  EXPECT_EQ(path_text(selection.tensors[1].path), "/a/b/top");
}

TEST(SelectPaths, AddsAPrefixWithoutADotToTheFirstKey) {
  const Catalog catalog = nested_catalog();
  const Selection selection = select(catalog, {.add_prefix = {"x"}});
  EXPECT_EQ(path_text(selection.tensors[0].path), "/xmodel/layers/0/w");
  EXPECT_EQ(selection.tensors[1].name, "xtop");
  EXPECT_TRUE(selection.tensors[1].path.empty());
}

TEST(SelectPaths, StaysFlatInAFlatSource) {
  const Catalog catalog = flat_catalog();
  const Selection selection = select(catalog, {.add_prefix = {"a."}});
  EXPECT_EQ(selection.tensors[0].name, "a.head");
  EXPECT_TRUE(selection.tensors[0].path.empty());
}

// --- Casts ---

TEST(SelectCast, AppliesTheFirstRuleThatMatches) {
  const Catalog catalog = flat_catalog();
  const Selection selection = select(catalog, {.cast = {"**.bias=float16", "**=bfloat16"}});
  EXPECT_EQ(selection.tensors[2].dtype, DType::kFloat16);
  EXPECT_EQ(selection.tensors[3].dtype, DType::kBfloat16);
  EXPECT_EQ(select(catalog, {.cast = {"head=float16", "**=bfloat16"}}).tensors[0].dtype, DType::kFloat16);
}

TEST(SelectCast, PassesIntegersByUnlessNamedExactly) {
  const Catalog catalog = flat_catalog();
  EXPECT_EQ(select(catalog, {.cast = {"**=bfloat16"}}).tensors[1].dtype, DType::kInt64);
  EXPECT_EQ(select(catalog, {.cast = {"**=bfloat16", "ids=int32"}}).tensors[1].dtype, DType::kInt32);
}

TEST(SelectCast, SeesResultingNames) {
  const Catalog catalog = flat_catalog();
  EXPECT_EQ(select(catalog, {.add_prefix = {"m."}, .cast = {"m.head=float16"}}).tensors[0].dtype, DType::kFloat16);
}

TEST(SelectCast, RefusesAGlobThatMatchesNothingAndNamesTheNearest) {
  const Catalog catalog = flat_catalog();
  expect_error(ErrorCode::kInvalidArgument, "did you mean 'model.a.weight=float16'?",
               [&] { select(catalog, {.cast = {"model.a.wieght=float16"}}); });
}

TEST(SelectCast, RefusesWhatIsNotADtype) {
  const Catalog catalog = flat_catalog();
  for (const char* rule : {"head", "head=", "head=float33", "=float16"}) {
    expect_error(ErrorCode::kInvalidArgument, "cast rule", [&] { select(catalog, {.cast = {rule}}); });
  }
}

TEST(SelectCast, LeavesAsTheyAreWhatARuleKeepsWhicheverOtherRulesMatch) {
  const Catalog catalog = flat_catalog();
  const std::vector<std::string> rules{"**=bfloat16", "**.bias=keep"};
  const Selection selection = select(catalog, {.cast = rules});
  EXPECT_EQ(selection.tensors[2].dtype, DType::kFloat32);
  EXPECT_EQ(selection.tensors[3].dtype, DType::kBfloat16);
  const std::vector<bool> decided = decided_by_rules(rules, catalog, selection.tensors);
  EXPECT_EQ(decided, (std::vector{true, false, true, true, true}));  // Not the integer, which the pattern passes by.
}

/// Runs the checks that `select` leaves to its caller.
std::vector<std::string> checked(const Catalog& catalog, const SelectionOptions& options,
                                 LoneFloats lone = LoneFloats::kConvert) {
  return check_casts(catalog, select(catalog, options).tensors, {}, lone);
}

Catalog quantized_catalog() {
  Catalog catalog;
  for (const std::string layer : {"model.layers.0.up.", "model.layers.1.up."}) {
    add_tensor(catalog, layer + "weight", {2, 2}, DType::kFloat8E4m3fn);
    add_tensor(catalog, layer + "weight_scale_inv", {1, 1});
  }
  add_tensor(catalog, "model.norm.weight", {2});
  validate_catalog(catalog);
  return catalog;
}

TEST(CheckCasts, RefusesQuantizedTensorsAndOffersGlobsThatKeepThem) {
  const Catalog catalog = quantized_catalog();
  for (const char* rule : {"**=bfloat16", "m.layers.0.up.weight_scale_inv=float16"}) {
    try {
      checked(catalog, {.rename = {"^model=m"}, .cast = {rule}});
      ADD_FAILURE() << "converted a quantized tensor: " << rule;
    } catch (const QuantizedCast& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
      EXPECT_TRUE(error.tensor().starts_with("m.layers.0.up.weight")) << error.tensor();
      EXPECT_EQ(error.globs(), Names{"m.layers.*.up.**"});
    }
  }
}

TEST(CheckCasts, LetsPlainTensorsOfAQuantizedCheckpointBeConverted) {
  const Catalog catalog = quantized_catalog();
  EXPECT_NO_THROW(checked(catalog, {.cast = {"**=bfloat16", "model.layers.*.up.**=keep"}}));
  EXPECT_NO_THROW(checked(catalog, {.include = {"**.norm.**"}, .cast = {"**=bfloat16"}}));
  EXPECT_NO_THROW(checked(catalog, {.cast = {"**=float32", "**.up.weight=keep"}}));  // Scales are float32.
}

TEST(CheckCasts, OffersNoGlobsWhereTheyAreTooMany) {
  Catalog catalog;
  for (char c = 'a'; c < 'u'; ++c) add_tensor(catalog, std::string(1, c) + ".weight_scale_inv", {2});
  validate_catalog(catalog);
  try {
    checked(catalog, {.cast = {"**=bfloat16"}});
    ADD_FAILURE() << "converted quantized tensors";
  } catch (const QuantizedCast& error) {
    EXPECT_TRUE(error.globs().empty());
  }
}

TEST(CheckCasts, WarnsOfFractionsAndImaginaryPartsThatAreDropped) {
  Catalog catalog;
  add_tensor(catalog, "x", {2});
  add_tensor(catalog, "y", {2}, DType::kBool);
  add_tensor(catalog, "z", {2}, DType::kComplex64);
  validate_catalog(catalog);
  EXPECT_EQ(checked(catalog, {.cast = {"x=int64", "y=int8", "z=float32"}}),
            (Names{"1 tensor is converted from float32 to int64, which drops fractions: 'x'",
                   "1 tensor is converted from complex64 to float32, which drops imaginary parts: 'z'"}));
}

TEST(CheckCasts, WarnsOfIntegersAndScalesThatTheNewDtypeCannotHold) {
  Catalog catalog;
  add_tensor(catalog, "ids", {2}, DType::kInt64);
  add_tensor(catalog, "few", {2}, DType::kInt8);
  add_tensor(catalog, "prior.scales", {2});
  add_tensor(catalog, "x.weight", {2}, DType::kFloat8E4m3fn);
  validate_catalog(catalog);
  EXPECT_EQ(checked(catalog, {.cast = {"ids=bfloat16", "few=bfloat16", "**=bfloat16"}}),
            (Names{"1 integer tensor is converted from int64 to bfloat16, which cannot represent all of them: 'ids'",
                   "1 tensor of scales is converted from float32 to bfloat16, which rounds them: 'prior.scales'",
                   "1 tensor is converted from float8_e4m3fn to bfloat16, which is right only if no scales belong to "
                   "them: 'x.weight'"}));
  EXPECT_EQ(checked(catalog, {.cast = {"**.scales=float64", "ids=bool", "few=int16"}}).size(), 1U);
  expect_error(ErrorCode::kUnsupported, "its scales are missing",
               [&] { checked(catalog, {.cast = {"x.weight=float32"}}, LoneFloats::kRefuse); });
}

TEST(SelectCast, RefusesCastsThatDoNotExist) {
  Catalog catalog;
  add_tensor(catalog, "q", {2}, DType::kQint8);
  expect_error(ErrorCode::kUnsupported, "no cast from qint8 to float32",
               [&] { select(catalog, {.cast = {"q=float32"}}); });
  Catalog floats = flat_catalog();
  expect_error(ErrorCode::kUnsupported, "to float4_e2m1fn_x2",
               [&] { select(floats, {.cast = {"head=float4_e2m1fn_x2"}}); });
}

}  // namespace
}  // namespace shard
