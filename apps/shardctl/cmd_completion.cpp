#include "apps/shardctl/completion.h"
#include "apps/shardctl/verbs.h"

namespace shard::app {

int run_completion(Session& session, const Options& options) {
  session.out << completion_script(options.shell);
  return 0;
}

}  // namespace shard::app
