#include "formats/hdf5/parser/parse.h"

#include <unistd.h>

#include <cstdlib>
#include <new>
#include <span>

#include "formats/hdf5/parser/describe_type.h"
#include "formats/hdf5/parser/file_driver.h"
#include "formats/hdf5/parser/lzf_filter.h"
#include "formats/hdf5/parser/opening.h"
#include "formats/hdf5/parser/sandbox.h"
#include "formats/hdf5/parser/walk.h"

namespace shard::hdf5 {
namespace {

FileFacts facts_of(hid_t file) {
  H5F_info2_t info{};
  checked(H5Fget_info2(file, &info));
  const PropertiesHandle creation(H5Fget_create_plist(file));
  hsize_t user_block = 0;
  checked(H5Pget_userblock(creation.get(), &user_block));
  return {info.super.version, signed_of(user_block), {}};
}

void send_facts(Channel& channel, const FileFacts& facts) {
  const FactsPayload payload{facts.user_block_bytes, facts.superblock_version};
  channel.send(FrameKind::kDone, {reinterpret_cast<const char*>(&payload), sizeof payload});
}

void parse(Channel& channel, std::int64_t most_entry_bytes) {
  try {
    register_lzf_filter();
    const FileHandle file = open_file(channel);
    const WholeFile whole{channel, facts_of(file.get())};
    walk(whole, file.get(), most_entry_bytes);
    send_facts(channel, whole.facts);
  } catch (const LibraryError& error) {
    channel.send(FrameKind::kFailure, encode_failure(error.what(), error.is_unsupported()));
  } catch (const Refusal& error) {
    channel.send(FrameKind::kFailure, encode_failure(error.what(), error.is_unsupported()));
  } catch (const std::bad_alloc&) {
    channel.send(FrameKind::kFailure, encode_failure("it needs more memory than a file of its size may", false));
  }
}

}  // namespace

int run_parse(std::span<char*> arguments) {
  if (arguments.size() != 4) return 2;
  const std::int64_t file_bytes = std::atoll(arguments[1]);
  const SandboxLimits limits{std::atoll(arguments[2]), std::atoll(arguments[3])};
  const auto lock = library_lock();
  Channel channel(file_bytes);
  say_what_took_the_time();
  if (!enter_sandbox(limits)) return kExitWithoutSandbox;
  parse(channel, limits.memory_bytes / 4);
  // Everything is said. What libhdf5 would do on the way out is not worth a fault.
  _exit(0);
}

}  // namespace shard::hdf5
