#include "apps/shardctl/arguments/completion.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "apps/shardctl/request/request.h"
#include "apps/shardctl/verbs/verbs.h"

namespace shard::app {

void check_completion(const Session&, Request& request) {
  const std::vector<std::string_view> shells = shell_names();
  if (std::ranges::find(shells, request.shell) != shells.end()) return;
  const std::string known = fmt::format("{}", fmt::join(shells, ", "));
  if (request.shell.empty()) throw usage("completion needs the name of a shell").hint("give one of " + known);
  throw usage(fmt::format("completion: no script for '{}'", request.shell)).expected(known).found(request.shell);
}

int run_completion(Session& session, const Request& request) {
  session.out << completion_script(request.shell);
  return 0;
}

}  // namespace shard::app
