#include "formats/parts/pickle/pickle.h"
#include "libshard/core/error.h"
#include "tests/fuzz/target.h"

// Loaded content is written again, and the output must load.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace shard;
  pickle::LoadOptions options;
  options.file = "fuzz";
  options.allow = pickle::is_known_global;
  Arena arena(std::make_shared<Budget>());
  arena.earn(static_cast<std::int64_t>(size));
  std::string written;
  try {
    const Value* value = pickle::load(arena, std::as_bytes(std::span(data, size)), options);
    pickle::Dumper dumper({.protocol = 2, .tensor = {}});
    dumper.value(*value);
    written = dumper.finish();
  } catch (const Error&) {
    return 0;
  }
  Arena again;
  pickle::load(again, std::as_bytes(std::span(written)), options);
  return 0;
}
