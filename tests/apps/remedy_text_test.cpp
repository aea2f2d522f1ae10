#include "apps/shardctl/arguments/remedy_text.h"

#include <gtest/gtest.h>

#include "apps/shardctl/arguments/verb.h"

namespace shard::app {
namespace {

/// A command that failed.
struct Typed {
  Request request;
  std::vector<std::string> arguments;
};

Typed of_line(std::vector<std::string> arguments) {
  Request request;
  request.verb = find_verb(arguments.front());
  return {request, std::move(arguments)};
}

std::string hint_text(const Error& error, const Typed& typed) {
  return hint_text(error, typed.request, typed.arguments);
}

Error failure() { return Error(ErrorCode::kUnsupported, "cannot do that"); }

struct Advice {
  Remedy remedy;
  std::string argument, text;
};

/// Beside other remedies, none of them gets a separate line.
std::string advice(Remedy remedy, const std::string& argument) {
  return hint_text(failure().hint("wait").suggest(remedy, argument), of_line({"gather", "ckpt", "-o", "x"}));
}

TEST(RemedyText, EveryRemedyNamesItsOption) {
  const std::vector<Advice> table{
      {Remedy::kAddPrefix, "", "give it a name with --add-prefix NAME"},
      {Remedy::kCast, "a[0]", "convert it with --cast 'a[[]0]=DTYPE'"},
      {Remedy::kExclude, "it's*", "add --exclude 'it'\\''s[*]' to skip it"},
      {Remedy::kExcludeMatching, "it's.**", "add --exclude 'it'\\''s.**' to skip them"},
      {Remedy::kRename, "a", "rename it with --rename 'REGEX=NAME'"},
      {Remedy::kDropObjects, "", "add --objects drop to skip them"},
      {Remedy::kOpaqueGlobals, "", "add --unknown-globals opaque to read everything else"},
      {Remedy::kReadAs, "dcp", "add --from dcp"},
      {Remedy::kWriteAs, "dcp", "add --to dcp"},
      {Remedy::kStateLayout, "", "describe how the source is sharded: --layout FILE"},
      {Remedy::kStateRanks, "", "add --ranks-expected N"},
      {Remedy::kCutTensors, "", "shard the tensors with --ranks, --mesh, --layout or --like"},
      {Remedy::kOneBoxPerRank, "", "choose a layout with one box per rank, such as --ranks N"},
      {Remedy::kUseMesh, "", "define the layout with --mesh and --place"},
      {Remedy::kSpreadFiles, "", "spread the tensors over several files with --shards or --max-shard-size"},
      {Remedy::kHoldAs, "dtensor", "add --as dtensor"},
      {Remedy::kNameFolder, "", "pass a folder to -o"},
      {Remedy::kReplaceDestination, "", "add --force to replace it"},
      {Remedy::kMoreMemory, "", "raise --max-memory"},
      {Remedy::kUseBackend, "gloo", "add --backend gloo"},
      {Remedy::kIgnoreLauncher, "",
       "add --launcher none to ignore the launcher's variables; 'shardctl env' shows what was found"},
      {Remedy::kNameLauncher, "", "choose one with --launcher NAME"},
      {Remedy::kNameRendezvous, "", "give the address of rank 0: --rdzv HOST:PORT"},
      {Remedy::kNameRank, "$PMIX_RANK", "pass --rank $PMIX_RANK --world-size N --rdzv HOST:PORT"},
      {Remedy::kReadFolder, "a b", "name 'a b' as the source"},
      {Remedy::kNameLike, "", "pass another checkpoint of the same job: --like CKPT"},
      {Remedy::kNameReference, "", "pass the folder with the model's config.json: --hf-ref DIR"},
      {Remedy::kStateVariable, "heads", "set it: --set heads=VALUE"},
      {Remedy::kMatchNames, "",
       "list the names with 'shardctl inspect'; --map and --rename change them; for an adapter of transformers 5: "
       "shardctl gather SRC -o NEW --to-map hf-v5"},
      {Remedy::kFuseExperts, "",
       "fuse the base model's experts first: shardctl gather SRC -o FUSED --to-map hf-v5; --map hf-v5 undoes that"},
      {Remedy::kDequantize, "", "add --dequantize"},
      {Remedy::kReadCopies, "", "add --weights 16bit"},
      {Remedy::kOneAdapter, "", "write one of them to a folder: shardctl export SRC -o DIR --exclude '**.OTHER**'"},
      {Remedy::kNameRegion, "eu-1", "add --region eu-1"},
      {Remedy::kNameEndpoint, "", "give the address of the service: --endpoint-url URL"},
      {Remedy::kAnonymous, "", "add --anonymous if the bucket is public"},
      {Remedy::kSendCredentials, "", "drop --anonymous, and give credentials"},
      {Remedy::kReadFiles, "a b/m*.pt", "name 'a b/'m*.pt as the source"},
      {Remedy::kUnpack, "gzip", "unpack it with gzip"},
  };
  ASSERT_EQ(table.size(), static_cast<std::size_t>(kRemedyCount));
  for (const Advice& each : table) EXPECT_EQ(advice(each.remedy, each.argument), "wait, or " + each.text);
}

TEST(RemedyText, AnotherSourceIsTheLineToRun) {
  Error error = failure().in_file("my run").suggest(Remedy::kReadFiles, "my run/model_*.pt");
  error.suggest(Remedy::kReadFolder, "my run/hf");
  EXPECT_EQ(hint_text(error, of_line({"gather", "my run", "-o", "x"})),
            "shardctl gather 'my run/'model_*.pt -o x, or shardctl gather 'my run/hf' -o x");
}

TEST(RemedyText, APackedFileIsUnpackedBesideIt) {
  const auto line = [](const char* file, const char* program) {
    return hint_text(failure().in_file(file).suggest(Remedy::kUnpack, program), of_line({"inspect", file}));
  };
  EXPECT_EQ(line("a b/m.nemo", "tar"), "mkdir m && tar -xf 'a b/m.nemo' -C m");
  EXPECT_EQ(line("m.tar.gz", "tar"), "mkdir m && tar -xf m.tar.gz -C m");
  EXPECT_EQ(line("m.pt.xz", "xz"), "xz -dc m.pt.xz > m.pt");
  EXPECT_EQ(line("m 1.keras", "unzip model.weights.h5"), "unzip 'm 1.keras' model.weights.h5");
  EXPECT_EQ(line("packed", "zstd"), "zstd -dc packed > packed.unpacked");
}

TEST(RemedyText, AFolderReplacesAllFilesOfItThatWereNamed) {
  Typed typed = of_line({"gather", "ckpt/a", "ckpt/b", "-o", "x"});
  typed.request.read.paths = {"ckpt/a", "ckpt/b"};
  EXPECT_EQ(hint_text(failure().in_file("ckpt/a").suggest(Remedy::kReadFolder, "ckpt"), typed),
            "shardctl gather ckpt -o x");
}

TEST(RemedyText, RemediesWithoutArgumentNameAPlaceholder) {
  EXPECT_EQ(advice(Remedy::kExclude, ""), "wait, or add --exclude NAME to skip it");
  EXPECT_EQ(advice(Remedy::kReadAs, ""), "wait, or add --from FORMAT");
  EXPECT_EQ(advice(Remedy::kCast, ""), "wait, or convert it with --cast GLOB=DTYPE");
}

TEST(RemedyText, OneOptionIsTheLineToRun) {
  const Typed typed = of_line({"gather", "my ckpt", "-o", "x.safetensors", "--objects=keep"});
  EXPECT_EQ(hint_text(failure().suggest(Remedy::kDropObjects), typed),
            "shardctl gather 'my ckpt' -o x.safetensors --objects drop");
  EXPECT_EQ(hint_text(failure().suggest(Remedy::kExclude, "w"), typed),
            "shardctl gather 'my ckpt' -o x.safetensors --objects=keep --exclude w");
}

TEST(RemedyText, AKnownReferenceReplacesTheGivenOne) {
  EXPECT_EQ(hint_text(failure().suggest(Remedy::kNameReference, "a b"), of_line({"export", "c", "--hf-ref", "hub"})),
            "shardctl export c --hf-ref 'a b'");
}

TEST(RemedyText, AlternativesOfOneOptionAreALineEach) {
  const Error error = failure().suggest(Remedy::kReadAs, "dcp").suggest(Remedy::kReadAs, "dcp-hf");
  EXPECT_EQ(hint_text(error, of_line({"inspect", "c", "--from", "torch"})),
            "shardctl inspect c --from dcp, or shardctl inspect c --from dcp-hf");
}

TEST(RemedyText, AFormatReplacesTheGivenOne) {
  EXPECT_EQ(hint_text(failure().suggest(Remedy::kWriteAs, "dcp"), of_line({"convert", "c", "--to", "deepspeed"})),
            "shardctl convert c --to dcp");
}

TEST(RemedyText, OtherAlternativesAreSaid) {
  const Error error = failure().suggest(Remedy::kWriteAs, "dcp").suggest(Remedy::kSpreadFiles);
  EXPECT_EQ(hint_text(error, of_line({"gather", "c", "-o", "x"})),
            "add --to dcp, or spread the tensors over several files with --shards or --max-shard-size");
}

TEST(RemedyText, TheLayoutOfTheSourceIsGathersWhereLayoutIsTheTargets) {
  EXPECT_EQ(hint_text(failure().suggest(Remedy::kStateLayout), of_line({"split", "c", "-o", "x"})),
            "describe how the source is sharded: run 'shardctl gather' with --layout FILE");
}

TEST(RemedyText, AnErrorWithoutSuggestionsKeepsItsHint) {
  EXPECT_EQ(hint_text(failure(), of_line({"inspect", "c"})), "");
  EXPECT_EQ(hint_text(failure().hint("fetch it again"), of_line({"inspect", "c"})), "fetch it again");
}

}  // namespace
}  // namespace shard::app
