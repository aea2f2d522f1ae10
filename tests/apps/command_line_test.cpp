#include "apps/shardctl/arguments/command_line.h"

#include <gtest/gtest.h>

#include "apps/shardctl/arguments/help.h"
#include "apps/shardctl/arguments/verb.h"
#include "apps/shardctl/request/command_text.h"
#include "tests/apps/world.h"
#include "tests/support/expect_error.h"

namespace shard::app {
namespace {

struct CommandLine : ::testing::Test {
  Request parse(const std::vector<std::string>& arguments) {
    std::ostringstream ignored;
    Session session{*world.fs,
                    ignored,
                    ignored,
                    false,
                    false,
                    [this](const std::string& name) {
                      const auto found = world.env.find(name);
                      return found == world.env.end() ? std::nullopt : std::optional<std::string>(found->second);
                    },
                    {},
                    [] { return 0; },
                    [] { return 0; },
                    {}};
    Request request;
    parse_command_line(arguments, session, request);
    common = session.common;
    typed = session.command.arguments;
    settings = session.command.settings;
    return request;
  }
  void refuses(const std::vector<std::string>& arguments, const std::string& words,
               ErrorCode code = ErrorCode::kInvalidArgument) {
    test::expect_error(code, words, [&] { parse(arguments); });
  }
  World world;
  CommonOptions common;            ///< Filled by the last parse.
  std::vector<std::string> typed;  ///< The arguments of the last parse.
  std::vector<std::string> settings;
};

TEST_F(CommandLine, TakesGlobalOptionsOnBothSidesOfTheVerb) {
  const Request request = parse({"--threads", "3", "inspect", "a", "--json"});
  EXPECT_EQ(request.verb, find_verb("inspect"));
  EXPECT_EQ(common.threads, 3);
  EXPECT_TRUE(common.json);
  EXPECT_EQ(request.read.paths, std::vector<std::string>{"a"});
}

TEST_F(CommandLine, TakesVerbOptionsBeforeArguments) {
  const Request request = parse({"split", "-o", "out", "--ranks", "4", "--dim", "-1", "a", "b"});
  EXPECT_EQ(request.write.layout.ranks, 4);
  EXPECT_EQ(request.write.layout.dim, -1);
  EXPECT_EQ(request.read.paths, (std::vector<std::string>{"a", "b"}));
}

TEST_F(CommandLine, HonoursTheDoubleDash) {
  EXPECT_EQ(parse({"inspect", "--", "--json"}).read.paths, std::vector<std::string>{"--json"});
}

TEST_F(CommandLine, ASourceMayBeCalledLikeAVerb) {
  EXPECT_EQ(parse({"diff", "split", "gather"}).read.paths, (std::vector<std::string>{"split", "gather"}));
}

TEST_F(CommandLine, RepeatableOptionsTakeOneWordEach) {
  const Request request = parse({"inspect", "--include", "a", "--include", "b", "src"});
  EXPECT_EQ(request.select.include, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(request.read.paths, std::vector<std::string>{"src"});
}

TEST_F(CommandLine, ADtypeMayFollowDequantize) {
  const Request request = parse({"inspect", "--dequantize", "float32", "a"});
  EXPECT_EQ(request.read.dequantize, DType::kFloat32);
  EXPECT_EQ(request.read.paths, std::vector<std::string>{"a"});
  for (const std::vector<std::string>& arguments : {std::vector<std::string>{"inspect", "--dequantize", "./float32"},
                                                    {"inspect", "--dequantize", "--", "./float32"}}) {
    const Request of_path = parse(arguments);
    EXPECT_EQ(of_path.read.dequantize, DType::kBfloat16);
    EXPECT_EQ(of_path.read.paths, std::vector<std::string>{"./float32"});
  }
  refuses({"inspect", "a", "--dequantize", "int8"}, "int8 is not bfloat16");
}

TEST_F(CommandLine, RefusesEmptyValues) {
  refuses({"average", "a", "b", "-o", "c", "--weights", ""}, "--weights has an empty value");
  refuses({"export", "a", "-o", "b", "--hf-ref="}, "--hf-ref");
  world.env["SHARDCTL_HF_REF"] = "";
  EXPECT_EQ(parse({"export", "a", "-o", "b"}).read.numbers.hf_ref, "");
}

TEST_F(CommandLine, CountsVerbosity) {
  parse({"env", "-vv"});
  EXPECT_EQ(common.verbose, 2);
  refuses({"env", "--verbose=99999999999999999999"}, "out of range");
  world.env["SHARDCTL_VERBOSE"] = "99999999999999999999";
  refuses({"env"}, "--verbose: the number is out of range");
}

TEST_F(CommandLine, TheLastOfSeveralShortOptionsMayTakeAValue) {
  const Request request = parse({"gather", "a", "-fo", "b", "-qj", "2"});
  EXPECT_TRUE(request.write.force);
  EXPECT_EQ(request.write.path, "b");
  EXPECT_EQ(request.read.paths, std::vector<std::string>{"a"});
  EXPECT_EQ(common.threads, 2);
  EXPECT_EQ(parse({"-qj", "2", "gather", "a", "-nob"}).write.path, "b");
}

TEST_F(CommandLine, LettersOfAnAttachedValueAreNoOptions) {
  const Request request = parse({"gather", "a", "-nohalf"});
  EXPECT_FALSE(request.help);
  EXPECT_EQ(request.write.path, "half");
}

TEST_F(CommandLine, FindsHelpAnywhere) { EXPECT_TRUE(parse({"split", "--nonsense", "-h"}).help); }

TEST_F(CommandLine, SuggestsTheVerb) { refuses({"splt", "a"}, "did you mean 'split'?"); }
TEST_F(CommandLine, SuggestsTheOption) { refuses({"split", "a", "--rnaks", "4"}, "did you mean --ranks?"); }
TEST_F(CommandLine, RefusesAnOptionOfAnotherVerb) {
  refuses({"inspect", "a", "--ranks", "4"}, "inspect does not take --ranks");
  for (const std::string verb : {"inspect", "digest", "cat"}) {
    refuses({verb, "a", "b", "--to-map", "hf-v5"}, verb + " does not take --to-map");
  }
  EXPECT_EQ(parse({"diff", "a", "b", "--to-map", "hf-v5"}).write.map, "hf-v5");
}
TEST_F(CommandLine, RefusesWordsThatAreNotNumbers) {
  refuses({"split", "a", "-o", "b", "--ranks", "many"}, "--ranks: many is not a whole number");
  refuses({"split", "a", "-o", "b", "--ranks", "0x10"}, "--ranks: 0x10 is not a whole number");
  refuses({"env", "--timeout", "0x10"}, "--timeout: 0x10 is not a number");
  refuses({"diff", "a", "b", "--atol", " 1"}, "--atol:  1 is not a number");
  EXPECT_EQ(parse({"diff", "a", "b", "--atol", "+1e-3"}).diff.atol, 1e-3);
}
TEST_F(CommandLine, RefusesNumbersThatDoNotFit) {
  refuses({"split", "a", "-o", "b", "--ranks", "99999999999999999999"}, "99999999999999999999 is out of range");
  refuses({"split", "a", "-o", "b", "--ranks", "4", "--dim", "4294967296"}, "4294967296 is out of range");
}
TEST_F(CommandLine, ChecksTheMemoryEvenOfVerbsThatDoNotUseIt) {
  refuses({"inspect", "a", "--max-memory", "many"}, "--max-memory 'many' is not a size");
}
TEST_F(CommandLine, RefusesALogInAFileThatItReads) {
  world.put("/m", "x");
  world.put("/c.toml", "quiet = true\n");
  refuses({"inspect", "/m", "--log-file", "/m"}, "the file is read by this command", ErrorCode::kExists);
  refuses({"env", "--config", "/c.toml", "--log-file", "/c.toml"}, "read by this command", ErrorCode::kExists);
  EXPECT_EQ(parse({"inspect", "/m", "--log-file", "/new"}).read.named_inputs, std::vector<std::string>{"/new"});
}
TEST_F(CommandLine, APathThatEndsInANumberIsAnAdapter) {
  world.put("/lr=0.5/adapter_model.safetensors", "x");
  const std::vector<AdapterRequest> adapters =
      parse({"digest", "a", "--lora", "/lr=0.5", "--lora", "/lr=0.5=2", "--lora", "/lr=3"}).read.adapters;
  ASSERT_EQ(adapters.size(), 3U);
  EXPECT_EQ(adapters[0].path, "/lr=0.5");
  EXPECT_EQ(adapters[0].weight, 1);
  EXPECT_EQ(adapters[1].path, "/lr=0.5");
  EXPECT_EQ(adapters[1].weight, 2);
  EXPECT_EQ(adapters[2].path, "/lr");
  EXPECT_EQ(adapters[2].weight, 3);
}
TEST_F(CommandLine, ReadsNumbersAsDecimals) {
  EXPECT_EQ(parse({"split", "a", "-o", "b", "--ranks", "010"}).write.layout.ranks, 10);
  EXPECT_EQ(parse({"split", "a", "-o", "b", "--ranks", "+4", "--dim", "-01"}).write.layout.dim, -1);
}
TEST_F(CommandLine, RefusesTwoLayouts) {
  refuses({"split", "a", "-o", "b", "--ranks", "2", "--shards", "2"}, "--ranks and --shards contradict each other");
}
TEST_F(CommandLine, RefusesAManifestWithoutHashes) {
  const std::vector<std::string> line{"gather", "a", "-o", "b", "--if-changed"};
  refuses({"gather", "a", "-o", "b", "--if-changed", "--checksum", "none"}, "--if-changed and --checksum none");
  world.env["SHARDCTL_CHECKSUM"] = "none";  // The default of many runs.
  EXPECT_TRUE(parse(line).write.wants_manifest());
  world.env = {{"SHARDCTL_IF_CHANGED", "1"}};
  refuses({"gather", "a", "-o", "b", "--checksum", "none"}, "--if-changed and --checksum none");
  EXPECT_EQ(parse({"gather", "a", "-o", "b", "--checksum", "sha256"}).write.checksum, "sha256");
}
TEST_F(CommandLine, RefusesDimWithoutRanks) { refuses({"split", "a", "-o", "b", "--dim", "1"}, "--dim needs --ranks"); }
TEST_F(CommandLine, RefusesPlaceWithoutMesh) {
  refuses({"split", "a", "-o", "b", "--place", "*=R"}, "--place needs --mesh");
}
TEST_F(CommandLine, RefusesAMissingDestination) { refuses({"gather", "a b"}, "shardctl gather 'a b' -o DST"); }
TEST_F(CommandLine, RefusesAnOptionAsADestination) {
  refuses({"gather", "a", "-o", "-f"}, "cannot write to '-f': it looks like an option");
  refuses({"inspect", "a", "--html", "--force"}, "cannot write to '--force'");
  refuses({"inspect", "a", "--log-file", "-q"}, "cannot write to '-q'");
  EXPECT_EQ(parse({"gather", "a", "-o", "./-f"}).write.path, "./-f");
}
TEST_F(CommandLine, NamesAnOptionWithoutValue) {
  refuses({"gather", "a", "-o"}, "--output needs a value");
  refuses({"split", "a", "-o", "b", "--ranks"}, "--ranks needs a value");
}
TEST_F(CommandLine, RefusesThreeToDiff) { refuses({"diff", "a", "b", "c"}, "3 given"); }
TEST_F(CommandLine, TheLastWordOfCatIsTheName) {
  const Request request = parse({"cat", "a", "b", "w[0:2]", "--format", "npy"});
  EXPECT_EQ(request.read.paths, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(request.cat.name, "w[0:2]");
  EXPECT_EQ(request.cat.format, "npy");
}
TEST_F(CommandLine, CatNeedsAName) { refuses({"cat", "a"}, "a tensor or object name"); }
TEST_F(CommandLine, CatPrintsOneForm) {
  refuses({"cat", "a", "w", "--json", "--format", "raw"}, "--json and --format raw cannot be combined");
}
TEST_F(CommandLine, CompletionNeedsAShellItKnows) {
  refuses({"completion"}, "completion needs the name of a shell");
  refuses({"completion", "tcsh"}, "no script for 'tcsh'");
}
TEST_F(CommandLine, TheLayoutIsTheTargetsWhereThereIsOne) {
  EXPECT_EQ(parse({"split", "a", "-o", "b", "--layout", "l.json"}).write.layout.layout, "l.json");
  EXPECT_EQ(parse({"gather", "a", "-o", "b", "--layout", "l.json"}).read.layout, "l.json");
  EXPECT_EQ(parse({"inspect", "a", "--layout", "l.json"}).read.layout, "l.json");
}
TEST_F(CommandLine, TheSourcesLayoutStandsBesideShards) {
  world.env = {{"SHARDCTL_LAYOUT", "l.json"}};
  const Request request = parse({"gather", "a", "-o", "b", "--shards", "2"});
  EXPECT_EQ(request.read.layout, "l.json");
  EXPECT_EQ(request.write.layout.shards, 2);
}
TEST_F(CommandLine, KnowsWhatFilesOfRanksMayHold) {
  EXPECT_EQ(parse({"split", "a", "-o", "b", "--as", "plain"}).write.rank_files, RankFiles::kPlain);
  refuses({"split", "a", "-o", "b", "--as", "tensors"}, "--as");
}
TEST_F(CommandLine, RefusesZeroExpectedRanks) { refuses({"inspect", "a", "--ranks-expected", "0"}, "at least 1"); }
TEST_F(CommandLine, OpaqueGlobalsMustBeAskedFor) {
  EXPECT_FALSE(parse({"inspect", "a", "--unknown-globals", "refuse"}).read.opaque_globals);
  EXPECT_TRUE(parse({"inspect", "a", "--unknown-globals", "opaque"}).read.opaque_globals);
}
TEST_F(CommandLine, TakesTheDefaultsOfThoseWhenGiven) {
  EXPECT_EQ(parse({"gather", "a", "-o", "b", "--checksum", "none"}).verb, find_verb("gather"));
}

TEST_F(CommandLine, ReadsTheEnvironment) {
  world.env = {{"SHARDCTL_MAX_MEMORY", "1GiB"}, {"SHARDCTL_QUIET", "1"}};
  const Request request = parse({"inspect", "a"});
  EXPECT_EQ(common.max_memory, "1GiB");
  EXPECT_TRUE(common.quiet);
}

TEST_F(CommandLine, EachLineOfAVariableIsAValueOfARepeatableOption) {
  world.env = {{"SHARDCTL_EXCLUDE", "a b\nc,d\n"}, {"SHARDCTL_LOG_FILE", "a\nb"}};
  const Request request = parse({"inspect", "a"});
  EXPECT_EQ(request.select.exclude, (std::vector<std::string>{"a b", "c,d"}));
  EXPECT_EQ(common.log_file, "a\nb");
  world.env = {{"SHARDCTL_EXCLUDE", "\n"}};
  EXPECT_TRUE(parse({"inspect", "a"}).select.exclude.empty());
}

TEST_F(CommandLine, AVersionInTheEnvironmentIsNotARequestForIt) {
  world.env = {{"SHARDCTL_VERSION", "0.1.0"}};
  EXPECT_FALSE(parse({"inspect", "a"}).version);
}

TEST_F(CommandLine, TheCommandLineBeatsTheEnvironment) {
  world.env = {{"SHARDCTL_RANKS", "8"}};
  const Request request = parse({"split", "a", "-o", "b", "--shards", "2"});
  EXPECT_EQ(request.write.layout.ranks, std::nullopt);
  EXPECT_EQ(request.write.layout.shards, 2);
}

TEST_F(CommandLine, NamesTheVariableOfABadValue) {
  world.env = {{"SHARDCTL_RANKS", "many"}};
  refuses({"split", "a", "-o", "b"}, "SHARDCTL_RANKS");
}

TEST_F(CommandLine, ReadsAConfigurationFileBehindTheEnvironment) {
  world.put("/etc/shardctl.toml", "threads = 2\nmax-memory = \"2GiB\"\n[split]\nranks = 4\n[diff]\natol = 1\n");
  world.env = {{"SHARDCTL_THREADS", "5"}};
  const Request request = parse({"split", "a", "-o", "b", "--config", "/etc/shardctl.toml"});
  EXPECT_EQ(common.threads, 5);
  EXPECT_EQ(common.max_memory, "2GiB");
  EXPECT_EQ(request.write.layout.ranks, 4);
  EXPECT_EQ(request.diff.atol, 0);
}

TEST_F(CommandLine, TheSectionOfTheVerbPrecedesTheKeysAboveIt) {
  world.put("/c.toml", "\xEF\xBB\xBFthreads = 2\nshards = 3\nexclude = 'a'\n[split]\nthreads = 4\nranks = 2\n");
  const Request request = parse({"split", "a", "-o", "b", "--config", "/c.toml"});
  EXPECT_EQ(common.threads, 4);
  EXPECT_EQ(request.write.layout.ranks, 2);
  EXPECT_EQ(request.write.layout.shards, std::nullopt);
  EXPECT_EQ(request.select.exclude, std::vector<std::string>{"a"});
  parse({"inspect", "a", "--config", "/c.toml"});
  EXPECT_EQ(common.threads, 2);
}

TEST_F(CommandLine, ARepeatedKeyOfAConfigurationFileHasAllItsValues) {
  world.put("/c.toml", "exclude = 'a'\nquiet = true\nexclude = ['b', 'c']\n");
  EXPECT_EQ(parse({"inspect", "a", "--config", "/c.toml"}).select.exclude, (std::vector<std::string>{"a", "b", "c"}));
}

TEST_F(CommandLine, RecordsOptionsThatAllRanksMustFindInTheirEnvironments) {
  world.put("/c.toml", "no-fsync = true\nconnections = 3\n[diff]\natol = 1\n");
  world.env = {{"SHARDCTL_CHECKSUM", "xxh3"}, {"SHARDCTL_LOCAL_INPUT", "1"}, {"SHARDCTL_RANKS", "8"},
               {"SHARDCTL_THREADS", "5"},     {"SHARDCTL_REGION", "here"},   {"SHARDCTL_DEVICE", "cpu"}};
  parse({"split", "a", "-o", "b", "--ranks", "2", "--config", "/c.toml"});
  EXPECT_THAT(settings, ::testing::UnorderedElementsAre("--checksum=xxh3", "--local-input=1", "--no-fsync=true"));
}

TEST_F(CommandLine, RefusesWrongConfigurationFiles) {
  for (const auto& [text, words] : std::vector<std::pair<std::string, std::string>>{
           {"thraeds = 2", "unknown key 'thraeds'"},
           {"json = [", "cannot read the value in --json = ["},
           {"threads = many", "--threads: many is not a whole number"},
           {"threads = []", "--threads has an empty list of values"},
           {"threads = [1", "--threads has an empty list of values"},
           {"[insepct]\nthreads = 2", "unknown section 'insepct'"},
           {"[inspect.more]\nthreads = 2", "unknown section 'inspect.more'"},
           {"[inspect]\nranks = 2", "inspect does not take ranks"},
           {"[digest]\nno-fsync = true", "digest does not take no-fsync"},
           {"help = true", "a configuration file cannot set help"},
           {"config = \"/d.toml\"", "a configuration file cannot name another one"},
           {"[inspect", "the section header '[inspect' has no ']'"},
       }) {
    world.put("/c.toml", text + "\n");
    const Error error = test::error_of([&] { parse({"inspect", "a", "--config", "/c.toml"}); });
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << text;
    EXPECT_EQ(error.file(), "/c.toml") << text;
    EXPECT_THAT(error.what(), ::testing::HasSubstr(words));
  }
}

TEST_F(CommandLine, ErrorsOfOptionsThatHelpDoesNotListBeginWithTheValue) {
  const Error error = test::error_of([&] { parse({"inspect", "a", "--device", "x"}); });
  EXPECT_THAT(error.what(), ::testing::StartsWith("x is not cpu"));
}

TEST_F(CommandLine, RepeatsTheLineForHints) {
  const Request request = parse({"gather", "my ckpt", "-o", "out", "--", "it's"});
  EXPECT_EQ(repeat_command(typed, "--objects drop"), "shardctl gather 'my ckpt' -o out --objects drop -- 'it'\\''s'");
}

TEST(ShellQuoted, WordsOfAnyBytesCanBePasted) {
  EXPECT_EQ(shell_quoted("a.pt"), "a.pt");
  EXPECT_EQ(shell_quoted(""), "''");
  EXPECT_EQ(shell_quoted("\xC3\xA4 b"), "'\xC3\xA4 b'");
  EXPECT_EQ(shell_quoted("a\nb'\\\xFF"), R"($'a\x0ab\'\\\xff')");
}

TEST(HelpText, NamesSharedOptionsAndDescribesThemOnDemand) {
  const std::string brief = help_text(find_verb("split"), false), all = help_text(find_verb("split"), true);
  EXPECT_NE(brief.find("'shardctl help split --all'"), std::string::npos);
  EXPECT_NE(brief.find("\n  Model maps: --map, --to-map, --set, --hf-ref\n"), std::string::npos) << brief;
  EXPECT_EQ(brief.find("--to-map NAME"), std::string::npos);
  EXPECT_NE(all.find("--to-map NAME"), std::string::npos);
  EXPECT_EQ(all.find("help split --all"), std::string::npos);
}

TEST(HelpText, DescribesTheOptionThatOnlyOneVerbHas) {
  EXPECT_NE(help_text(find_verb("repair"), false).find("--like CKPT"), std::string::npos);
}

TEST_F(CommandLine, HelpTakesAll) {
  EXPECT_TRUE(parse({"help", "split", "--all"}).all_options);
  EXPECT_TRUE(parse({"split", "--help", "--all"}).all_options);
  EXPECT_FALSE(parse({"help", "split"}).all_options);
}

TEST(HelpText, NamesExamplesOptionsAndExitCodes) {
  const std::string text = help_text(find_verb("split"), false);
  for (const char* part : {"Examples:", "--ranks N", "Exit codes:", "--max-memory SIZE", "Usage: shardctl split"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part;
  }
}

}  // namespace
}  // namespace shard::app
