#include "apps/shardctl/arguments/help_text.h"
#include "apps/shardctl/request/request.h"
#include "apps/shardctl/text/text_sink.h"
#include "apps/shardctl/verbs/verbs.h"

namespace shard::app {

int run_help(Session& session, const Request& request) {
  TextSink(session.out).lines(help_text(request.verb));
  return 0;
}

}  // namespace shard::app
