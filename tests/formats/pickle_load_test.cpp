#include <gtest/gtest.h>

#include "formats/parts/pickle/foreign_holder.h"
#include "tests/formats/pickle_text.h"

namespace shard {
namespace {

using namespace shard::testing;

TEST(PickleLoad, IntegersOfEveryWidthKeepTheirSign) {
  Arena arena;
  const std::string text =
      "\x80\x02(K\xffM\xff\xffJ\xff\xff\xff\xff\x8a\x00\x8a\x05\x00\x00\x00\x00\x01\x8a\x01\x80I-5000000000\nt."s;
  const Value* tuple = load_text(arena, text);
  ASSERT_EQ(tuple->items().size(), 7u);
  const std::int64_t expected[] = {255, 65535, -1, 0, 4294967296, -128, -5000000000};
  for (std::size_t i = 0; i < 7; ++i) EXPECT_EQ(tuple->items()[i]->number, expected[i]) << i;
}

TEST(PickleLoad, IntegerPast64BitsKeepsItsBytes) {
  Arena arena;
  const std::string text = "\x80\x02\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x80\x00."s;
  const Value* value = load_text(arena, text);
  EXPECT_EQ(value->kind, ValueKind::kLong);
  EXPECT_EQ(value->text(), "\x00\x00\x00\x00\x00\x00\x00\x80\x00"s);
}

TEST(PickleLoad, FloatsAreBigEndian) {
  Arena arena;
  const std::string text = "\x80\x02G\x3f\xf8\x00\x00\x00\x00\x00\x00."s;
  EXPECT_EQ(load_text(arena, text)->real, 1.5);
}

TEST(PickleLoad, MemoGivesTheSameNode) {
  Arena arena;
  const std::string text =
      "\x80\x02]q\x05(h\x05h\x05K\x01"
      "e."s;  // A list that contains itself twice and 1.
  const Value* list = load_text(arena, text);
  ASSERT_EQ(list->items().size(), 3u);
  EXPECT_EQ(list->items()[0], list);
  EXPECT_EQ(list->items()[1], list);
  EXPECT_EQ(list->items()[2]->number, 1);
}

TEST(PickleLoad, RepeatedKeyKeepsFirstPlaceAndLastValue) {
  Arena arena;
  const std::string text =
      "\x80\x02}(X\x01\x00\x00\x00"
      "aK\x01X\x01\x00\x00\x00"
      "bK\x02X\x01\x00\x00\x00"
      "aK\x03\x88K\x04K\x01K\x05u."s;
  const Value* dict = load_text(arena, text);
  ASSERT_EQ(dict->items().size(), 6u);
  EXPECT_EQ(dict->items()[0]->text(), "a");
  EXPECT_EQ(dict->items()[1]->number, 3);
  EXPECT_EQ(dict->items()[2]->text(), "b");
  EXPECT_EQ(dict->items()[4]->kind, ValueKind::kBool);  // True and 1 are one key.
  EXPECT_EQ(dict->items()[5]->number, 5);
}

TEST(PickleLoad, RepeatedKeysOfALargeDictAreMerged) {
  std::string text = "\x80\x02}("s;
  for (int round = 0; round < 2; ++round) {
    for (char c = 'A'; c <= 'Z'; ++c) text += "X\x01\x00\x00\x00"s + c + 'K' + static_cast<char>(c + round);
  }
  text += "u.";
  Arena arena;
  const Value* dict = load_text(arena, text);
  ASSERT_EQ(dict->items().size(), 52u);
  EXPECT_EQ(dict->items()[50]->text(), "Z");
  EXPECT_EQ(dict->items()[51]->number, 'Z' + 1);
}

TEST(PickleLoad, StateDictIsACallWithItemsAndState) {
  Arena arena;
  const std::string text =
      "\x80\x02"
      "ccollections\nOrderedDict\nq\x00)Rq\x01(X\x01\x00\x00\x00wK\x01u}X\x09\x00\x00\x00_metadata}sb."s;
  const Value* dict = load_text(arena, text);
  ASSERT_TRUE(dict->is_call_of("collections", "OrderedDict"));
  ASSERT_NE(dict->extra(), nullptr);
  EXPECT_EQ(dict->extra()->dict_items[0]->text(), "w");
  EXPECT_EQ(dict->state()->items()[0]->text(), "_metadata");
  EXPECT_FALSE(dict->is_new);
}

// Python 2 pickles an OrderedDict as a call with a list of [key, value].
TEST(PickleLoad, OrderedDictOfPython2HasItsItems) {
  Arena arena;
  const std::string text =
      "\x80\x02"
      "ccollections\nOrderedDict\n](](U\001wK\001e](U\001xK\002e](U\001wK\003ee\x85R}X\001\0\0\0tK\004sb."s;
  const Value* dict = load_text(arena, text);
  ASSERT_TRUE(dict->is_call_of("collections", "OrderedDict"));
  EXPECT_TRUE(dict->items().empty());
  const std::span<Value*> items = mapping_items(*dict);
  ASSERT_EQ(items.size(), 4u);
  EXPECT_EQ(items[0]->text(), "w");
  EXPECT_EQ(items[1]->number, 3);
  EXPECT_EQ(items[2]->text(), "x");
  EXPECT_EQ(dict->state()->items()[0]->text(), "t");
  EXPECT_TRUE(mapping_items(*load_text(arena,
                                       "\x80\x02"
                                       "ccollections\nOrderedDict\n]\x85R."s))
                  .empty());
  EXPECT_EQ(error_of("\x80\x02"
                     "ccollections\nOrderedDict\n](](]K\001ee\x85R."s)
                .code(),
            ErrorCode::kCorruption);  // A list as a key.
}

TEST(PickleLoad, NewObjectAndBatchesOfAppends) {
  Arena arena;
  const std::string text =
      "\x80\x04](K\x01K\x02"
      "e(K\x03"
      "ea\x8c\x05torch\x8c\x04Size\x93)\x81."s;
  EXPECT_EQ(error_of(text).code(), ErrorCode::kCorruption);  // APPEND without an item.
  const std::string good =
      "\x80\x04](K\x01K\x02"
      "e(K\x03"
      "eK\x04"
      "a\x8c\x05torch\x8c\x04Size\x93)\x81\x86."s;
  const Value* pair = load_text(arena, good);
  EXPECT_EQ(pair->items()[0]->items().size(), 4u);
  EXPECT_EQ(pair->items()[0]->items()[3]->number, 4);
  EXPECT_TRUE(pair->items()[1]->is_call_of("torch", "Size"));
  EXPECT_TRUE(pair->items()[1]->is_new);
}

TEST(PickleLoad, EnumMembersComeInBothSpellings) {
  Arena arena;
  const std::string by_name =
      "\x80\x02"
      "c__builtin__\ngetattr\nctorch.distributed.checkpoint.metadata\n_MEM_FORMAT_ENCODING\n"
      "X\x0c\x00\x00\x00TORCH_STRIDE\x86R."s;
  EXPECT_TRUE(load_text(arena, by_name)->is_call_of("builtins", "getattr"));
  const std::string by_value =
      "\x80\x02"
      "ctorch.distributed.checkpoint.metadata\n_MEM_FORMAT_ENCODING\nK\x00\x85R."s;
  EXPECT_TRUE(load_text(arena, by_value)->is_call_of("torch.distributed.checkpoint.metadata", "_MEM_FORMAT_ENCODING"));
}

TEST(PickleLoad, BytesOfProtocol2AreBytes) {
  Arena arena;
  const std::string text =
      "\x80\x02"
      "c_codecs\nencode\nX\x05\x00\x00\x00"
      "a\xc2\x80\xc3\xbf"
      "X\x06\x00\x00\x00latin1\x86R."s;
  const Value* value = load_text(arena, text);
  ASSERT_EQ(value->kind, ValueKind::kBytes);
  EXPECT_EQ(value->text(), "a\x80\xff");
}

TEST(PickleLoad, CharacterPast255IsNoByte) {
  Arena arena;
  const std::string text =
      "\x80\x02"
      "c_codecs\nencode\nX\x02\x00\x00\x00\xc4\x80X\x06\x00\x00\x00latin1\x86R."s;
  EXPECT_TRUE(load_text(arena, text)->is_call_of("_codecs", "encode"));
}

TEST(PickleLoad, SetOfProtocol2IsASetOfItsOwn) {
  Arena arena;
  const std::string text =
      "\x80\x02"
      "]q\x00K\x01"
      "a0c__builtin__\nset\nh\x00\x85R(K\x02\x90h\x00\x86."s;  // The list of which it was made does not grow with it.
  const Value* pair = load_text(arena, text);
  ASSERT_EQ(pair->items()[0]->kind, ValueKind::kSet);
  EXPECT_EQ(pair->items()[0]->items().size(), 2u);
  EXPECT_EQ(pair->items()[1]->items().size(), 1u);
}

TEST(PickleLoad, NestedClassMadeThroughGetattr) {
  Arena arena;
  const std::string text =
      "\x80\x02"
      "c__builtin__\ngetattr\nctorch.distributed._shard.sharded_tensor.api\nShardedTensor\n"
      "X\x11\x00\x00\x00ProcessGroupState\x86R)\x81}b."s;
  const Value* state = load_text(arena, text);
  ASSERT_EQ(state->kind, ValueKind::kCall);
  EXPECT_TRUE(state->callee()->is_call_of("builtins", "getattr"));
  EXPECT_EQ(state->state()->kind, ValueKind::kDict);
}

TEST(PickleLoad, ConsumedEndsAfterStop) {
  Arena arena;
  const std::string text = "\x80\x02K\x07.rest";
  std::size_t consumed = 0;
  pickle::load(arena, bytes_of(text), known_only(), &consumed);
  EXPECT_EQ(consumed, 5u);
}

TEST(PickleLoad, StringsPointIntoTheInput) {
  Arena arena;
  const std::string text =
      "\x80\x04\x8c\x03"
      "abc."s;
  EXPECT_EQ(load_text(arena, text)->text().data(), text.data() + 4);
}

TEST(PickleLoad, LoneSurrogatesPassOtherBadUtf8DoesNot) {
  EXPECT_EQ(error_of("\x80\x04\x8c\x03\xed\xa0\x80."s).code(), ErrorCode::kInterrupted);
  for (const std::string& bad : {"\xc0\x80"s, "\xe0\x80\x80"s, "\xf4\x90\x80\x80"s, "\x80"s, "\xc3"s, "\xff"s}) {
    EXPECT_EQ(error_of("\x80\x04\x8c"s + static_cast<char>(bad.size()) + bad + ".").code(), ErrorCode::kCorruption);
  }
}

TEST(PickleLoad, UnknownClassIsOpaqueWhenAskedFor) {
  Arena arena;
  pickle::LoadOptions options = known_only();
  options.opaque_unknown = true;
  const std::string text =
      "\x80\x02(cmy.config\nModelConfig\n)\x81}X\x01\x00\x00\x00"
      "aK\x01sbccopy_reg\n_reconstructor\n(cmy\nOld\n"
      "c__builtin__\nobject\nNtRcmy\nListLike\n)RK\x01"
      "at."s;
  const Value* tuple = load_text(arena, text, options);
  ASSERT_EQ(tuple->items().size(), 3u);
  EXPECT_EQ(tuple->items()[0]->kind, ValueKind::kOpaque);
  EXPECT_EQ(tuple->items()[0]->module(), "my.config");
  EXPECT_EQ(tuple->items()[0]->text(), "ModelConfig");
  EXPECT_EQ(tuple->items()[1]->text(), "Old");
  ASSERT_EQ(tuple->items()[2]->kind, ValueKind::kList);  // Its pickle shows that it is one.
  EXPECT_EQ(tuple->items()[2]->items()[0]->number, 1);
}

const Value* load_foreign(Arena& arena, const std::string& text) {
  pickle::LoadOptions options = known_only();
  options.opaque_unknown = true;
  return load_text(arena, text, options);
}

TEST(PickleLoad, SubclassesOfBuiltInTypesAreTheirValues) {
  Arena arena;
  const std::string text =  // The value refers to it.
      "\x80\x02(cmy\nText\nX\x01\x00\x00\x00s\x85\x81"
      "cmy\nNumber\nK\x05\x85\x81"
      "cmy\nPair\n"
      "K\x01K\x02\x86\x81"
      "cmy\nTable\n)\x81K\x01K\x02st."s;
  const Value* all = load_foreign(arena, text);
  ASSERT_EQ(all->items().size(), 4u);
  EXPECT_EQ(all->items()[0]->text(), "s");
  EXPECT_EQ(all->items()[1]->number, 5);
  EXPECT_EQ(all->items()[2]->kind, ValueKind::kTuple);
  EXPECT_EQ(all->items()[3]->kind, ValueKind::kDict);
  EXPECT_EQ(all->items()[3]->items().size(), 2u);
}

TEST(PickleLoad, WhatHasMoreThanItsBuiltInTypeIsOpaque) {
  const std::string state =
      "}K\x01K\x02s"
      "b."s;
  for (const std::string& made : {"cmy\nText\nX\x01\x00\x00\x00s\x85\x81"s, "cmy\nTable\n)\x81K\x01K\x02s"s,
                                  "cmy\nMixed\n)\x81K\x01K\x02sK\x03"
                                  "a"s,
                                  "cmy\nCalled\nK\x01\x85R"s}) {
    Arena arena;
    EXPECT_EQ(load_foreign(arena, "\x80\x02" + made + state)->kind, ValueKind::kOpaque) << made;
  }
}

TEST(PickleLoad, AnObjectOfAnUnknownClassShowsThatItHoldsTensors) {
  const std::string storage =
      "(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x00"
      "0X\x03\x00\x00\x00"
      "cpuK\x01tQ"s;
  for (const std::string& made :
       {"cmy\nA\n" + storage + "\x85R.", "cmy\nA\n)R" + storage + "b.", "cmy\nA\n)R}K\x01" + storage + "sb.",
        "cmy\nA\n)Rq\x00}K\x01"
        "cmy\nB\n)R}K\x02h\x00sbsK\x03"s +
            storage + "sb."}) {
    Arena arena;
    const Value* value = load_foreign(arena, "\x80\x02" + made);
    ASSERT_TRUE(pickle::is_foreign_holder(*value)) << made;
    EXPECT_EQ(value->callee()->text(), "A");
    EXPECT_EQ(value->items()[0]->kind, ValueKind::kPersid);
  }
}

// B is complete before A, which contains it, gets a tensor.
TEST(PickleLoad, AnObjectThatIsHeldBeforeItGetsTensorsCountsForItsHolders) {
  const std::string storage =
      "(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x00"
      "0X\x03\x00\x00\x00"
      "cpuK\x01tQ"s;
  Arena arena;
  const Value* pair = load_foreign(arena,
                                   "\x80\x02"
                                   "cmy\nA\n)Rq\x00"
                                   "cmy\nB\n)R}K\x02]h\x00"
                                   "asbq\x01"
                                   "0}K\x03"s +
                                       storage +
                                       "sb"
                                       "h\x01\x86."s);
  EXPECT_TRUE(pickle::is_foreign_holder(*pair->items()[0]));
  EXPECT_TRUE(pickle::is_foreign_holder(*pair->items()[1]));
}

TEST(PickleLoad, EachGlobalIsAskedForOnce) {
  int asked = 0;
  pickle::LoadOptions options;
  options.allow = [&](std::string_view, std::string_view) { return ++asked > 0; };
  Arena arena;
  const std::string text =
      "\x80\x02"
      "ca\nb\nca\nb\n\x86."s;
  const Value* pair = load_text(arena, text, options);
  EXPECT_EQ(asked, 1);
  EXPECT_EQ(pair->items()[0], pair->items()[1]);
}

TEST(KnownGlobals, HoldWhatTorchWrites) {
  for (const auto& [module, name] : std::initializer_list<std::pair<const char*, const char*>>{
           {"torch", "float8_e4m3fn"},
           {"torch", "BFloat16Storage"},
           {"torch._utils", "_rebuild_tensor_v3"},
           {"torch.distributed._shard.checkpoint.metadata", "Metadata"},
           {"torch.distributed.checkpoint.filesystem", "_StorageInfo"},
           {"torch.distributed.tensor.placement_types", "_StridedShard"},
           {"torch.distributed._tensor.api", "DTensor"},
           {"pathlib._local", "PosixPath"},
           {"numpy._core.multiarray", "scalar"},
           {"collections", "OrderedDict"},
           {"argparse", "Namespace"},
           {"torch._dynamo.decorators", "_DimRange"},
           {"torch.cuda.sparse", "HalfTensor"}}) {
    EXPECT_TRUE(pickle::is_known_global(module, name)) << module << "." << name;
  }
}

TEST(KnownGlobals, HoldNoCodeAndNoPartsOfNames) {
  for (const auto& [module, name] :
       std::initializer_list<std::pair<const char*, const char*>>{{"os", "system"},
                                                                  {"posix", "system"},
                                                                  {"nt", "system"},
                                                                  {"sys", "exit"},
                                                                  {"subprocess", "Popen"},
                                                                  {"builtins", "eval"},
                                                                  {"builtins", "exec"},
                                                                  {"builtins", "__import__"},
                                                                  {"builtins", "open"},
                                                                  {"torch", "load"},
                                                                  {"torch", "half"},
                                                                  {"torch.hub", "load"},
                                                                  {"torch.storage", "_load_from_bytes"},
                                                                  {"numpy", "load"},
                                                                  {"builtins", ""},
                                                                  {"builtins", "se"},
                                                                  {"builtins", "set slice"},
                                                                  {"collections", "OrderedDict.fromkeys"},
                                                                  {"", "set"},
                                                                  {"torch.serialization", "load"},
                                                                  {"pip", "main"},
                                                                  {"pickle", "loads"},
                                                                  {"runpy", "_run_code"}}) {
    EXPECT_FALSE(pickle::is_known_global(module, name)) << module << "." << name;
  }
}

}  // namespace
}  // namespace shard
