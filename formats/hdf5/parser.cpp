#include "formats/hdf5/parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "formats/hdf5/parser_process.h"
#include "formats/hdf5/reply.h"
#include "formats/hdf5/run_parser.h"
#include "libshard/core/error.h"
#include "libshard/core/hash_table.h"
#include "libshard/core/shared_library.h"

namespace shard::hdf5 {

namespace {

/// This side of one run of the parser over one file.
class Conversation {
 public:
  Conversation(const ParserProgram& program, const RandomReader& file, Arena& arena, ParserTime& time)
      : file_(file),
        arena_(arena),
        time_(time),
        process_(program.path, kParserName, arguments_for(file, time), program.silence) {}
  ~Conversation() { time_.spend(process_.end()); }
  Conversation(const Conversation&) = delete;
  Conversation& operator=(const Conversation&) = delete;

  FileFacts follow(const std::function<void(const Entry&)>& each) {
    while (true) {
      FrameHead head;
      receive(std::as_writable_bytes(std::span(&head, 1)));
      const std::span<const std::byte> payload = take_payload(head.bytes);
      switch (head.kind) {
        case FrameKind::kRead:
          serve(plain_of<ReadRequest>(payload));
          break;
        case FrameKind::kEntry:
          each(decode_entry(payload, file_.size(), arena_));
          break;
        case FrameKind::kSkipped:
          facts_.skipped.emplace_back(reinterpret_cast<const char*>(payload.data()), payload.size());
          break;
        case FrameKind::kDone: {
          const auto done = plain_of<FactsPayload>(payload);
          facts_.superblock_version = done.superblock_version;
          facts_.user_block_bytes = done.user_block_bytes;
          return std::move(facts_);
        }
        case FrameKind::kFailure:
          throw_failure(payload);
        default:
          throw_malformed("a frame of an unknown kind");
      }
    }
  }

 private:
  /// The process's limits depend on the allocated bytes of the file, because a hole cannot describe anything.
  static std::vector<std::string> arguments_for(const RandomReader& file, ParserTime& time) {
    constexpr std::int64_t kMiB = 1 << 20;
    const std::int64_t held_bytes = file.allocated_bytes(0, file.size()), held_mib = held_bytes / kMiB;
    time.earn(held_bytes);
    const std::int64_t cpu_seconds = time.seconds_left();
    if (cpu_seconds == 0) throw_out_of_time();
    const std::int64_t memory_mib = 256 + std::min<std::int64_t>(4 * held_mib, 4096);
    return {fmt::format("{}", file.size()), fmt::format("{}", cpu_seconds), fmt::format("{}", memory_mib * kMiB)};
  }

  [[noreturn]] static void throw_malformed(std::string_view what) {
    throw Error(ErrorCode::kCorruption, "cannot read the HDF5 file: its parser gave a malformed answer")
        .of_kind(FindingKind::kBadHeader)
        .because(what);
  }
  [[noreturn]] static void throw_out_of_time() {
    throw Error(ErrorCode::kCorruption, "cannot read the HDF5 file: the files of this checkpoint take too much time")
        .of_kind(FindingKind::kBadHeader)
        .because("their parsers took all the processor time that files of their size may use");
  }
  [[noreturn]] void throw_ended() {
    const Fate fate = process_.fate();
    if (fate.kind == Fate::Kind::kWithoutSandbox) {
      throw Error(ErrorCode::kUnsupported, "cannot read HDF5 files here: their parser cannot be confined")
          .because(fate.text)
          .hint("run it on a system or in a container that allows seccomp");
    }
    throw Error(ErrorCode::kCorruption, "cannot read the HDF5 file: the parser failed on it")
        .of_kind(FindingKind::kBadHeader)
        .because(fate.text);
  }

  void receive(std::span<std::byte> out) {
    if (!process_.receive(out)) throw_ended();
  }

  std::span<const std::byte> take_payload(std::uint32_t bytes) {
    arena_.charge(Charge::kBytes, bytes);
    if (payload_.size() < bytes) payload_.resize(bytes);
    const std::span<std::byte> payload = std::span(payload_).first(bytes);
    receive(payload);
    return payload;
  }

  template <class Plain>
  static Plain plain_of(std::span<const std::byte> payload) {
    Plain plain;
    if (payload.size() != sizeof plain) throw_malformed("a frame of another length than its kind has");
    std::memcpy(&plain, payload.data(), sizeof plain);
    return plain;
  }

  void serve(const ReadRequest& request) {
    const std::int64_t all_blocks = file_.size() / kReadBlock + (file_.size() % kReadBlock != 0);
    const auto first = static_cast<std::int64_t>(request.first_block);
    if (request.blocks == 0 || request.blocks > kMostReadBlocks || first < 0 || first > all_blocks ||
        request.blocks > all_blocks - first) {
      throw_malformed("a request outside the file");
    }
    const std::int64_t offset = first * kReadBlock;
    const std::int64_t count = std::min(request.blocks * kReadBlock, file_.size() - offset);
    for (std::int64_t block = first; block < first + request.blocks; ++block) {
      // The block was read before and is not kept. The parser's limit of CPU time limits the repetitions.
      if (!served_.insert(block)) continue;
      const std::int64_t bytes = std::min(kReadBlock, file_.size() - block * kReadBlock);
      arena_.earn(file_.allocated_bytes(block * kReadBlock, bytes));
      arena_.charge(Charge::kBytes, bytes);
    }
    block_.resize(static_cast<std::size_t>(count));
    file_.read_at(offset, block_);
    if (!process_.send(block_)) throw_ended();
  }

  const RandomReader& file_;
  Arena& arena_;
  ParserTime& time_;
  ParserProcess process_;
  FileFacts facts_{};
  std::vector<std::byte> payload_, block_;
  HashSet<std::int64_t> served_;
};

/// The program beside the library with this code. In the one-file program, that program itself (formats/helper.h).
std::string path_of_parser() {
#ifdef SHARD_HDF5_INSIDE
  return "/proc/self/exe";
#else
  static const char kHere = 0;
  return folder_of_code(&kHere) + "/" + kParserName;
#endif
}

}  // namespace

std::int64_t ParserTime::seconds_left() const {
  using std::chrono::microseconds;
  constexpr std::int64_t kMiB = 1 << 20;
  constexpr microseconds kFloor{2'000'000}, kPerMiB{200'000};
  const microseconds left = kFloor + kPerMiB * held_bytes_ / kMiB - spent_;
  if (left.count() <= 0) return 0;
  return std::max<std::int64_t>(1, std::chrono::round<std::chrono::seconds>(left).count());
}

FileFacts run_parser(const ParserProgram& program, const RandomReader& file, Arena& arena, ParserTime& time,
                     const std::function<void(const Entry&)>& each) {
  try {
    return Conversation(program, file, arena, time).follow(each);
  } catch (Error& error) {
    throw error.in_file(file.name());
  }
}

FileFacts parse_file(const RandomReader& file, Arena& arena, ParserTime& time,
                     const std::function<void(const Entry&)>& each) {
  static const ParserProgram program{path_of_parser()};
  return run_parser(program, file, arena, time, each);
}

}  // namespace shard::hdf5
