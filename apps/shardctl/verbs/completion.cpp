#include "apps/shardctl/arguments/completion.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "apps/shardctl/verbs/verbs.h"

namespace shard::app {

void check_completion(const Session&, Request& options) {
  const std::vector<std::string_view> shells = shell_names();
  if (std::ranges::find(shells, options.shell) != shells.end()) return;
  const std::string known = fmt::format("{}", fmt::join(shells, ", "));
  if (options.shell.empty()) throw usage("completion needs the name of a shell").hint("give one of " + known);
  throw usage(fmt::format("completion: no script for '{}'", options.shell)).expected(known).found(options.shell);
}

int run_completion(Session& session, const Request& options) {
  session.out << completion_script(options.shell);
  return 0;
}

}  // namespace shard::app
