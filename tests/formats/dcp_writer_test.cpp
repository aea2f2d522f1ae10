// Catalogs through the dcp writer: flat keys, offsets, losses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/dcp/flatten.h"
#include "formats/dcp/metadata.h"
#include "formats/dcp/source_files.h"
#include "libshard/io/local_disk.h"
#include "tests/formats/dcp_golden.h"
#include "tests/support/content.h"
#include "tests/support/expect_error.h"

namespace shard {
namespace {

using test::GoldenDcp;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

/// A catalog of a tree, with one tensor for each kTensor.
class Tree {
 public:
  Value* tensor() {
    const auto index = static_cast<std::int64_t>(catalog.tensors.size());
    Tensor made;
    made.name = arena().copy("unnamed" + std::to_string(index));
    catalog.tensors.push_back(made);
    return make_tensor(arena(), index);
  }
  Value* number(std::int64_t value) { return make_int(arena(), value); }
  Value* text(std::string_view value) { return make_string(arena(), value); }
  Value* list(std::initializer_list<Value*> items) { return make(ValueKind::kList, items); }
  Value* tuple(std::initializer_list<Value*> items) { return make(ValueKind::kTuple, items); }
  Value* dict(std::initializer_list<Value*> items) { return make(ValueKind::kDict, items); }
  Value* ordered_dict(std::initializer_list<Value*> items) {
    Value* made = make_call(arena(), make_global(arena(), "collections", "OrderedDict"), {});
    extra_of(arena(), *made).dict_items = dict(items)->items();
    return made;
  }
  dcp::Flat flatten(Value* root) {
    catalog.root = root;
    return dcp::flatten(catalog);
  }
  Arena& arena() { return *catalog.arena; }
  Catalog catalog;

 private:
  Value* make(ValueKind kind, std::initializer_list<Value*> items) {
    return make_list(arena(), kind, {items.begin(), items.size()});
  }
};

std::vector<std::string> names(const dcp::Flat& flat) {
  std::vector<std::string> names;
  for (const dcp::TensorLeaf& leaf : flat.tensors) names.emplace_back(leaf.name);
  for (const dcp::ObjectEntry& leaf : flat.objects) names.emplace_back(leaf.name);
  return names;
}

// The rules of torch/distributed/checkpoint/_traverse.py.

TEST(DcpFlatten, MappingsAreAlwaysDescended) {
  Tree t;
  EXPECT_THAT(names(t.flatten(t.dict({t.text("a"), t.dict({t.text("b"), t.number(1)}), t.text("c"), t.tensor()}))),
              UnorderedElementsAre("a.b", "c"));
}

TEST(DcpFlatten, AListOfNumbersIsOneLeaf) {
  Tree t;
  EXPECT_THAT(names(t.flatten(t.dict({t.text("a"), t.list({t.number(1), t.list({t.number(2)})})}))), ElementsAre("a"));
}

TEST(DcpFlatten, AListThatHoldsATensorOrAMappingIsDescended) {
  Tree t;
  Value* inner = t.list({t.list({t.tensor()}), t.number(5)});
  Value* groups = t.list({t.dict({t.text("lr"), t.number(1)})});
  const dcp::Flat flat = t.flatten(t.dict({t.text("a"), inner, t.text("groups"), groups}));
  EXPECT_THAT(names(flat), UnorderedElementsAre("a.0.0", "a.1", "groups.0.lr"));
  EXPECT_TRUE(flat.tensors[0].path[1].is_index);
  EXPECT_THAT(flat.warnings, IsEmpty());
}

TEST(DcpFlatten, ATupleIsOneLeaf) {
  Tree t;
  const dcp::Flat flat = t.flatten(t.dict({t.text("betas"), t.tuple({t.number(1), t.number(2)})}));
  EXPECT_THAT(names(flat), ElementsAre("betas"));
  EXPECT_EQ(flat.values[0]->kind, ValueKind::kTuple);
}

TEST(DcpFlatten, AParameterIsItsTensor) {
  Tree t;
  Value* arguments[] = {t.tensor(), t.number(1), t.dict({})};
  Value* parameter = make_call(t.arena(), make_global(t.arena(), "torch._utils", "_rebuild_parameter"), arguments);
  EXPECT_EQ(t.flatten(t.dict({t.text("p"), parameter})).tensors[0].tensor, 0u);
}

TEST(DcpFlatten, ATensorGoesByTheNameOfItsPlace) {
  Tree t;
  Value* tied = t.tensor();
  t.tensor();
  t.catalog.tensors[0].name = "a";
  t.catalog.tensors[1].name = "b";
  const dcp::Flat flat = t.flatten(t.dict({t.text("a"), tied, t.text("b"), tied}));
  EXPECT_EQ(flat.tensors[0].tensor, 0u);
  EXPECT_EQ(flat.tensors[1].tensor, 1u);
}

// Losses.

TEST(DcpFlatten, IntegerKeysBecomeStringsAndThatIsSaid) {
  Tree t;
  Value* state = t.dict({t.number(0), t.tensor(), t.number(1), t.tensor()});
  const dcp::Flat flat = t.flatten(t.dict({t.text("state"), state}));
  EXPECT_THAT(names(flat), ElementsAre("state.0", "state.1"));
  EXPECT_FALSE(flat.tensors[0].path[1].is_index);
  EXPECT_THAT(flat.warnings, ElementsAre("dcp: integer keys become strings in 'state' (and 1 more)"));
}

TEST(DcpFlatten, KeysOfOtherTypesBecomeStringsAndThatIsSaid) {
  Tree t;
  Value* pair = make_list(t.arena(), ValueKind::kTuple, std::vector<Value*>{t.number(1), t.text("x")});
  const dcp::Flat flat = t.flatten(t.dict({pair, t.tensor(), t.text("w"), t.tensor()}));
  EXPECT_THAT(names(flat), UnorderedElementsAre("(1, 'x')", "w"));
  EXPECT_THAT(flat.warnings, ElementsAre("dcp: keys of other types become strings in the top"));
}

TEST(DcpFlatten, AnEmptyDictVanishesAndThatIsSaid) {
  Tree t;
  const dcp::Flat flat = t.flatten(t.dict({t.text("a"), t.dict({}), t.text("b"), t.number(1)}));
  EXPECT_THAT(names(flat), ElementsAre("b"));
  EXPECT_THAT(flat.warnings, ElementsAre("dcp: an empty dict is lost: 'a'"));
}

TEST(DcpFlatten, AnEmptyDictInAListIsAnItemSoThatNoIndexIsMissing) {
  Tree t;
  Value* const nested = t.dict({t.text("x"), t.dict({})});
  Value* const list = make_list(t.arena(), ValueKind::kList, std::vector<Value*>{t.dict({}), nested, t.tensor()});
  const dcp::Flat flat = t.flatten(t.dict({t.text("t"), t.tuple({t.tensor(), t.dict({})}), t.text("l"), list}));
  EXPECT_THAT(names(flat), UnorderedElementsAre("t.0", "t.1", "l.0", "l.1.x", "l.2"));
  EXPECT_THAT(flat.warnings, ElementsAre("dcp: a tuple that contains tensors becomes a list: 't'"));
}

TEST(DcpFlatten, TheMetadataOfAModuleIsLostAndThatIsSaid) {
  Tree t;
  Value* model = t.ordered_dict({t.text("w"), t.tensor()});
  model->call->state = t.dict({t.text("_metadata"), t.dict({})});
  EXPECT_THAT(t.flatten(t.dict({t.text("model"), model})).warnings, ElementsAre(HasSubstr("the _metadata of 'model'")));
}

TEST(DcpFlatten, AnOrderedDictBecomesADictAndThatIsSaid) {
  Tree t;
  EXPECT_THAT(t.flatten(t.ordered_dict({t.text("w"), t.tensor()})).warnings, ElementsAre(HasSubstr("OrderedDict")));
}

TEST(DcpFlatten, ATupleOfTensorsBecomesAListAndThatIsSaid) {
  Tree t;
  const dcp::Flat flat = t.flatten(t.dict({t.text("t"), t.tuple({t.tensor(), t.number(1)})}));
  EXPECT_THAT(names(flat), UnorderedElementsAre("t.0", "t.1"));
  EXPECT_THAT(flat.warnings, ElementsAre(HasSubstr("a tuple that contains tensors becomes a list: 't'")));
}

// Refusals.

TEST(DcpFlatten, TwoPathsWithOneKeyAreRefusedByName) {
  Tree t;
  Value* root = t.dict({t.text("a.b"), t.number(1), t.text("a"), t.dict({t.text("b"), t.number(2)})});
  test::expect_error(ErrorCode::kUnsupported, "['a.b'] and ['a', 'b'] would have the same name in dcp: 'a.b'",
                     [&] { t.flatten(root); });
}

TEST(DcpFlatten, AnOpaqueValueIsRefusedByName) {
  Tree t;
  Value* opaque = make_global(t.arena(), "a", "Config");
  opaque->kind = ValueKind::kOpaque;
  test::expect_error(ErrorCode::kUnsupported, "object 'x.y'", [&] {
    t.flatten(t.dict({t.text("x"), t.dict({t.text("y"), t.list({opaque})})}));
  });
}

TEST(DcpFlatten, ATensorInKeywordArgumentsIsRefusedByName) {
  Tree t;
  Value* call = make_call(t.arena(), make_global(t.arena(), "argparse", "Namespace"), {});
  extra_of(t.arena(), *call).kwargs = t.dict({t.text("x"), t.tensor()});
  test::expect_error(ErrorCode::kUnsupported, "'a'", [&] { t.flatten(t.dict({t.text("a"), call})); });
}

TEST(DcpFlatten, ABareTensorIsRefused) {
  Tree t;
  test::expect_error(ErrorCode::kUnsupported, "bare", [&] { t.flatten(t.tensor()); });
}

TEST(DcpFlatten, ACycleEnds) {
  Tree t;
  Value* loop = t.dict({t.text("a"), t.number(1)});
  loop->items()[1] = loop;
  test::expect_error(ErrorCode::kCorruption, "too deeply", [&] { t.flatten(loop); });
}

TEST(DcpMetadata, WhatIsWrittenIsReadAlike) {
  GoldenDcp golden("four_ranks");
  const std::string& bytes = golden.files.at(".metadata");
  Arena arena, again_arena;
  const dcp::Metadata first = dcp::parse_metadata(arena, std::as_bytes(std::span(bytes)), ".metadata");
  std::string dumped;
  dcp::dump_metadata(first, [&dumped](std::string_view piece) { dumped += piece; });
  const dcp::Metadata again = dcp::parse_metadata(again_arena, std::as_bytes(std::span(dumped)), ".metadata");
  ASSERT_EQ(again.tensors.size(), first.tensors.size());
  for (std::size_t i = 0; i < first.tensors.size(); ++i) {
    EXPECT_EQ(again.tensors[i].name, first.tensors[i].name);
    EXPECT_EQ(again.tensors[i].size, first.tensors[i].size);
    EXPECT_EQ(again.tensors[i].dtype, first.tensors[i].dtype);
    EXPECT_EQ(again.tensors[i].path.size(), first.tensors[i].path.size());
  }
  ASSERT_EQ(again.chunks.size(), first.chunks.size());
  for (std::size_t i = 0; i < first.chunks.size(); ++i) {
    const dcp::Item &a = again.items[again.chunks[i].item], &b = first.items[first.chunks[i].item];
    EXPECT_EQ(again.chunks[i].offsets, first.chunks[i].offsets);
    EXPECT_EQ(std::tuple(a.offset, a.length, again.files[a.file]), std::tuple(b.offset, b.length, first.files[b.file]));
  }
  EXPECT_EQ(again.objects.size(), first.objects.size());
}

TEST(DcpMetadata, RankAndNumberComeFromTheFileName) {
  EXPECT_EQ(dcp::file_numbers("__12_3.distcp").rank, 12);
  EXPECT_EQ(dcp::file_numbers("__12_3.distcp").number, 3);
  for (const char* other :
       {"__1.distcp", "_1_0.distcp", "__-1_0.distcp", "__1_0.distcpx", "__99999999999_0.distcp", "__1_x.distcp"}) {
    EXPECT_EQ(dcp::file_numbers(other).rank, -1) << other;
  }
}

// Whole checkpoints.

struct Written {
  std::shared_ptr<MemoryState> state = std::make_shared<MemoryState>();
  std::unique_ptr<LocalDisk> fs = make_memory_disk(state);

  explicit Written(Reader& source, Layout layout) {
    fs->make_folder("/d");
    result = testing::write_checkpoint(*fs, source, {.format = "dcp", .destination = "/d/out", .layout = layout});
  }
  CopyResult result;
};

TEST(DcpWriter, ObjectsComeBackAsTheyWere) {
  GoldenDcp golden("one_rank");
  const std::unique_ptr<Reader> source = golden.open();
  source->load_objects();
  const Written written(*source, RanksLayout{3, 0});
  const std::unique_ptr<Reader> reader = testing::open_checkpoint(*written.fs, "/d/out");
  reader->load_objects();
  ASSERT_EQ(reader->catalog().objects.size(), 1u);
  EXPECT_EQ(reader->catalog().objects[0].name, "step");
  EXPECT_EQ(reader->catalog().objects[0].value->number, 7);
}

TEST(DcpWriter, AFileStandsForEachRankThatHoldsSomething) {
  GoldenDcp golden("one_rank");
  const std::unique_ptr<Reader> source = golden.open();
  source->load_objects();
  const Written written(*source, RanksLayout{4, 0});  // Three rows: the fourth rank has no data.
  EXPECT_THAT(written.fs->list("/d/out"), ElementsAre(".metadata", "__0_0.distcp", "__1_0.distcp", "__2_0.distcp"));
}

TEST(DcpWriter, EqualInputsGiveEqualFiles) {
  GoldenDcp golden("four_ranks");
  const std::unique_ptr<Reader> source = testing::content_reader(testing::read_content(*golden.open()));
  const Written first(*source, RanksLayout{3, 1}), second(*source, RanksLayout{3, 1});
  for (const std::string& name : first.fs->list("/d/out")) {
    EXPECT_EQ(first.state->content("/d/out/" + name), second.state->content("/d/out/" + name)) << name;
  }
}

TEST(DcpWriter, ElementsComeBackFromEveryLayout) {
  GoldenDcp golden("four_ranks");
  const testing::Content expected = testing::read_content(*golden.open());
  const std::unique_ptr<Reader> source = testing::content_reader(expected);
  for (const Layout& layout : {Layout(WholeLayout{}), Layout(RanksLayout{5, 0}), Layout(RanksLayout{3, 1})}) {
    const Written written(*source, layout);
    EXPECT_EQ(testing::read_content(*testing::open_checkpoint(*written.fs, "/d/out")), expected);
  }
}

TEST(DcpWriter, Float6IsRefusedByName) {
  std::mt19937_64 random(1);
  const testing::Content content{{"six", testing::random_tensor(random, DType::kFloat6E2m3fn, {4})}};
  const std::unique_ptr<Reader> source = testing::content_reader(content);
  test::expect_error(ErrorCode::kUnsupported, "'six' is float6_e2m3fn", [&] { Written(*source, WholeLayout{}); });
}

TEST(DcpWriter, IsAFolderNeverAFile) {
  test::expect_error(ErrorCode::kInvalidArgument, "folder",
                     [] { writer_of(kDcpFormat, {.single_file = true, .base_name = "x"}); });
}

}  // namespace
}  // namespace shard
