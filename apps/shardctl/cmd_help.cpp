#include "apps/shardctl/command_line.h"
#include "apps/shardctl/verbs.h"

namespace shard::app {

int run_help(Session& session, const Options& options) {
  session.out << help_text(options.verb);
  return 0;
}

}  // namespace shard::app
