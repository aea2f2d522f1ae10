#include "apps/shardctl/arguments/help_text.h"
#include "apps/shardctl/text/text_sink.h"
#include "apps/shardctl/verbs/verbs.h"

namespace shard::app {

int run_help(Session& session, const Request& options) {
  TextSink(session.out).lines(help_text(options.verb));
  return 0;
}

}  // namespace shard::app
