#include "apps/shardctl/help_text.h"
#include "apps/shardctl/text_sink.h"
#include "apps/shardctl/verbs.h"

namespace shard::app {

int run_help(Session& session, const Options& options) {
  TextSink(session.out).lines(help_text(options.verb));
  return 0;
}

}  // namespace shard::app
