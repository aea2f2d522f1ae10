// Runs the conformance suite of groups as one rank of a job: group_program BACKEND [CHECK|heavy]. The launcher is
// detected as in shardctl. It runs only CHECK of the checks that break the group, or none; heavy ones only on request.
// Prints a line per check on rank 0, and, if CHECK breaks the group, on each rank that must see it: the first that ends
// may end the others. Exits 0 if all passed here, otherwise 1.
#include <fmt/format.h>

#include <cstdio>
#include <string_view>

#include "libshard/core/error.h"
#include "libshard/ranks/open_group.h"
#include "tests/support/group_conformance.h"

namespace {

bool is_wanted(const shard::testing::GroupCheck& check, std::string_view what) {
  if (check.breaks) return what == check.name;
  return check.is_heavy ? what == "heavy" : what.empty() || what == "heavy";
}

/// The last rank is the one that breaks the group.
bool tells(const shard::testing::GroupCheck& check, const shard::Group& group) {
  return group.rank() == 0 || (check.breaks && group.rank() < group.size() - 1);
}

int run(const std::string& backend, std::string_view what) {
  const shard::Launch launch = shard::detect_launch({}, shard::process_environment());
  std::unique_ptr<shard::Group> opened;
  if (launch.size > 1) opened = shard::open_group({launch, std::chrono::seconds(60)}, backend);
  shard::Group& group = opened ? *opened : shard::solo_group();
  if (launch.size > 1 && group.backend() != backend) throw std::runtime_error("another backend was opened");
  for (const shard::testing::GroupCheck& check : shard::testing::group_checks()) {
    if (!is_wanted(check, what)) continue;
    check.run(group);
    if (tells(check, group)) fmt::print("{} {} ranks: {}\n", backend, group.size(), check.name);
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc > 1 ? argv[1] : "gloo", argc > 2 ? argv[2] : "");
  } catch (const shard::Error& error) {
    fmt::print(stderr, "{}: {}\n", error.what(), error.why());
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
  }
  return 1;
}
