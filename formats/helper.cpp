#include "formats/helper.h"

#include <linux/seccomp.h>
#include <sys/prctl.h>

#include <cerrno>
#include <mutex>
#include <utility>

#ifdef SHARD_HDF5_INSIDE
#include <string_view>

#include "formats/hdf5/parser/parse.h"
#include "formats/hdf5/run_parser.h"
#endif

namespace shard {
namespace {

struct HelperProgram {
  std::mutex mutex;
  std::string path = "/proc/self/exe";
};

HelperProgram& the_helper_program() {
  static HelperProgram program;
  return program;
}

}  // namespace

std::string helper_program() {
  HelperProgram& program = the_helper_program();
  const std::scoped_lock lock(program.mutex);
  return program.path;
}

void set_helper_program(std::string path) {
  HelperProgram& program = the_helper_program();
  const std::scoped_lock lock(program.mutex);
  program.path = std::move(path);
}

std::optional<int> run_as_helper([[maybe_unused]] std::span<char*> arguments) {
#ifdef SHARD_HDF5_INSIDE
  if (!arguments.empty() && arguments.front() == std::string_view(hdf5::kParserName)) return hdf5::run_parse(arguments);
#endif
  return std::nullopt;
}

bool has_call_filters() {
  // The kernel checks the filter's address before anything that depends on it, so a null address has no effect.
  return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, nullptr, 0, 0) != 0 && errno == EFAULT;
}

}  // namespace shard
