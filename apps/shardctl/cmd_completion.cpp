#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "apps/shardctl/completion.h"
#include "apps/shardctl/verbs.h"

namespace shard::app {

std::vector<std::string_view> shell_names() { return {"bash", "zsh", "fish"}; }

void check_completion(const Session&, Options& options) {
  const std::vector<std::string_view> shells = shell_names();
  if (std::ranges::find(shells, options.shell) != shells.end()) return;
  const std::string known = fmt::format("{}", fmt::join(shells, ", "));
  if (options.shell.empty()) throw usage("completion needs the name of a shell").hint("give one of " + known);
  throw usage(fmt::format("completion: no script for '{}'", options.shell)).expected(known).found(options.shell);
}

int run_completion(Session& session, const Options& options) {
  session.out << completion_script(options.shell);
  return 0;
}

}  // namespace shard::app
