#include <gtest/gtest.h>
#include <sys/stat.h>

#include "formats/hdf5/parser.h"
#include "tests/hdf5/parsed_file.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"

namespace shard::hdf5 {
namespace {

/// A replacement for the parser program: a shell script, whose descriptor 0 is the socket.
class Hdf5ParserProcess : public ::testing::Test {
 protected:
  void expect(const std::string& script, const std::string& words, ErrorCode code = ErrorCode::kCorruption) {
    folder_.write("parser", "#!/bin/sh\n" + script + "\n");
    const std::string path = folder_ / "parser";
    chmod(path.c_str(), 0700);
    test::expect_error(code, words, [&] {
      parse_bytes(std::string(100, 'x'), [](const Entry&) {}, nullptr, {path, std::chrono::milliseconds(300)});
    });
  }

  test::TempFolder folder_;
};

/// A frame's head, for printf.
constexpr const char* kRead = R"(printf '\000\000\000\000\020\000\000\000)";

TEST_F(Hdf5ParserProcess, ThatEndsWithoutAnAnswerIsSaidSo) { expect("exit 0", "exited before finishing its answer"); }
TEST_F(Hdf5ParserProcess, ThatCrashesIsSaidSo) { expect("kill -SEGV $$", "it crashed (Segmentation fault)"); }
TEST_F(Hdf5ParserProcess, ThatTakesTooMuchTimeIsSaidSo) { expect("kill -XCPU $$", "too long for a file"); }
TEST_F(Hdf5ParserProcess, ThatIsKilledEarlyDamagesNoFile) {
  expect("kill -KILL $$", "its parser was killed by signal 9", ErrorCode::kResource);
}
TEST_F(Hdf5ParserProcess, ThatEndsItselfAtItsTimeIsSaidSo) { expect("exit 4", "too long for a file"); }
TEST_F(Hdf5ParserProcess, ThatCannotBeConfinedReadsNothing) {
  expect("exit 3", "cannot be confined", ErrorCode::kUnsupported);
}
TEST_F(Hdf5ParserProcess, ThatIsSilentIsEnded) { expect("exec sleep 1000", "stopped answering"); }
TEST_F(Hdf5ParserProcess, ThatClosesItsSocketAndStaysIsEnded) { expect("exec sleep 1000 <&-", "it closed its socket"); }

TEST_F(Hdf5ParserProcess, ThatSendsAnUnknownFrameIsRefused) {
  expect(R"(printf '\011\000\000\000\000\000\000\000' >&0)", "unknown kind");
}
TEST_F(Hdf5ParserProcess, ThatSendsAFrameOfAnotherLengthIsRefused) {
  expect(R"(printf '\000\000\000\000\001\000\000\000x' >&0)", "does not have the length");
}
TEST_F(Hdf5ParserProcess, ThatAnnouncesAHugeFrameIsRefusedBeforeItComes) {
  expect(R"(printf '\001\000\000\000\377\377\377\377' >&0; exec sleep 1000)", "are far too many for");
}
TEST_F(Hdf5ParserProcess, ThatReadsBehindTheFileIsRefused) {
  expect(std::string(kRead) + R"(\001\000\000\000\000\000\000\000\001\000\000\000\000\000\000\000' >&0)",
         "a request outside the file");
}
TEST_F(Hdf5ParserProcess, ThatReadsNothingIsRefused) {
  expect(std::string(kRead) + R"(\000\000\000\000\000\000\000\000\000\000\000\000\000\000\000\000' >&0)",
         "a request outside the file");
}

TEST_F(Hdf5ParserProcess, HasNoEnvironment) {
  expect(R"(printf '\004\000\000\000\005\000\000\000\000%4s' "$HOME$USER" >&0)", "cannot read the HDF5 file:     ");
}

}  // namespace
}  // namespace shard::hdf5
