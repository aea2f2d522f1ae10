#include "apps/shardctl/help_text.h"
#include "apps/shardctl/verbs.h"

namespace shard::app {

int run_help(Session& session, const Options& options) {
  session.out << help_text(options.verb);
  return 0;
}

}  // namespace shard::app
