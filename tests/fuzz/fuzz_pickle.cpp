#include "formats/parts/pickle/pickle.h"
#include "libshard/core/error.h"
#include "tests/fuzz/target.h"

// Whatever loads is written again, and what was written must load.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace shard;
  pickle::LoadOptions options;
  options.file = "fuzz";
  options.allow = pickle::is_known_global;
  options.max_bytes = 1 << 22;
  Arena arena;
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
  pickle::LoadOptions roomy = options;
  roomy.max_bytes = 1 << 26;
  pickle::load(again, std::as_bytes(std::span(written)), roomy);
  return 0;
}
