#include "apps/shardctl/remedy_text.h"

#include <gtest/gtest.h>

#include "apps/shardctl/verb.h"

namespace shard::app {
namespace {

Options of_line(std::vector<std::string> arguments) {
  Options options;
  options.verb = find_verb(arguments.front());
  options.arguments = std::move(arguments);
  return options;
}

Error failure() { return Error(ErrorCode::kUnsupported, "cannot do that"); }

struct Advice {
  Remedy remedy;
  std::string argument, text;
};

/// Beside another remedy, none of them gets a separate line.
std::string advice(Remedy remedy, const std::string& argument) {
  return hint_text(failure().hint("wait").suggest(remedy, argument), of_line({"gather", "ckpt", "-o", "x"}));
}

TEST(RemedyText, EveryRemedyNamesItsOption) {
  const std::vector<Advice> table{
      {Remedy::kAddPrefix, "", "give it a name with --add-prefix NAME"},
      {Remedy::kCast, "a[0]", "convert it with --cast 'a[[]0]=DTYPE'"},
      {Remedy::kExclude, "it's*", "add --exclude 'it'\\''s[*]' to leave it out"},
      {Remedy::kRename, "a", "rename it with --rename 'REGEX=NAME'"},
      {Remedy::kDropObjects, "", "add --objects drop to leave them out"},
      {Remedy::kOpaqueGlobals, "",
       "add --unknown-globals opaque to read the rest and leave values of such classes out"},
      {Remedy::kReadAs, "dcp", "add --from dcp"},
      {Remedy::kWriteAs, "dcp", "add --to dcp"},
      {Remedy::kStateLayout, "", "say how the tensors were cut: --layout FILE"},
      {Remedy::kStateRanks, "", "add --ranks-expected N"},
      {Remedy::kCutTensors, "", "cut the tensors with --ranks, --mesh, --layout or --like"},
      {Remedy::kOneBoxPerRank, "", "choose a layout of one box a rank, such as --ranks N"},
      {Remedy::kUseMesh, "", "say how to cut with --mesh and --place"},
      {Remedy::kSpreadFiles, "", "spread the tensors over several files with --shards or --max-shard-size"},
      {Remedy::kHoldAs, "dtensor", "add --as dtensor"},
      {Remedy::kNameFolder, "", "name a folder after -o"},
      {Remedy::kReplaceDestination, "", "add --force to replace it as a whole"},
      {Remedy::kMoreMemory, "", "raise --max-memory"},
      {Remedy::kUseBackend, "gloo", "add --backend gloo"},
      {Remedy::kIgnoreLauncher, "",
       "add --launcher none to ignore the launcher's variables; 'shardctl env' shows what was found"},
      {Remedy::kNameLauncher, "", "name the launcher whose variables count with --launcher"},
      {Remedy::kNameRendezvous, "", "say where rank 0 can be reached: --rdzv HOST:PORT"},
      {Remedy::kNameRank, "$PMIX_RANK", "pass --rank $PMIX_RANK --world-size N --rdzv HOST:PORT"},
      {Remedy::kReadFolder, "a b", "name 'a b' as the source"},
      {Remedy::kNameLike, "", "name another checkpoint of the same job with --like CKPT"},
      {Remedy::kNameReference, "", "name the folder of the model's config.json with --hf-ref DIR"},
      {Remedy::kStateVariable, "heads", "state it with --set heads=VALUE"},
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
  Options options = of_line({"gather", "ckpt/a", "ckpt/b", "-o", "x"});
  options.source.paths = {"ckpt/a", "ckpt/b"};
  EXPECT_EQ(hint_text(failure().in_file("ckpt/a").suggest(Remedy::kReadFolder, "ckpt"), options),
            "shardctl gather ckpt -o x");
}

TEST(RemedyText, RemediesWithoutArgumentNameAPlaceholder) {
  EXPECT_EQ(advice(Remedy::kExclude, ""), "wait, or add --exclude NAME to leave it out");
  EXPECT_EQ(advice(Remedy::kReadAs, ""), "wait, or add --from FORMAT");
  EXPECT_EQ(advice(Remedy::kCast, ""), "wait, or convert it with --cast GLOB=DTYPE");
}

TEST(RemedyText, OneOptionIsTheLineToRun) {
  const Options options = of_line({"gather", "my ckpt", "-o", "x.safetensors", "--objects=keep"});
  EXPECT_EQ(hint_text(failure().suggest(Remedy::kDropObjects), options),
            "shardctl gather 'my ckpt' -o x.safetensors --objects drop");
  EXPECT_EQ(hint_text(failure().suggest(Remedy::kExclude, "w"), options),
            "shardctl gather 'my ckpt' -o x.safetensors --objects=keep --exclude w");
}

TEST(RemedyText, AlternativesOfOneOptionAreALineEach) {
  const Error error = failure().suggest(Remedy::kReadAs, "dcp").suggest(Remedy::kReadAs, "dcp-hf");
  EXPECT_EQ(hint_text(error, of_line({"inspect", "c", "--from", "torch"})),
            "shardctl inspect c --from dcp, or shardctl inspect c --from dcp-hf");
}

TEST(RemedyText, OtherAlternativesAreSaid) {
  const Error error = failure().suggest(Remedy::kDropObjects).suggest(Remedy::kWriteAs, "torch");
  EXPECT_EQ(hint_text(error, of_line({"gather", "c", "-o", "x"})),
            "add --objects drop to leave them out, or add --to torch");
}

TEST(RemedyText, TheLayoutOfTheSourceIsGathersWhereLayoutIsTheTargets) {
  EXPECT_EQ(hint_text(failure().suggest(Remedy::kStateLayout), of_line({"split", "c", "-o", "x"})),
            "say how the tensors were cut: 'shardctl gather' takes --layout FILE for the source");
}

TEST(RemedyText, AnErrorWithoutSuggestionsKeepsItsHint) {
  EXPECT_EQ(hint_text(failure(), of_line({"inspect", "c"})), "");
  EXPECT_EQ(hint_text(failure().hint("fetch it again"), of_line({"inspect", "c"})), "fetch it again");
}

}  // namespace
}  // namespace shard::app
