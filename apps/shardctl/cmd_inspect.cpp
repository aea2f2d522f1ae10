#include "apps/shardctl/ranks.h"
#include "apps/shardctl/render_inspect.h"
#include "apps/shardctl/verbs.h"

namespace shard::app {

namespace {

int inspect(Session& session, const Options& options) {
  Log log(session);
  OpenSource source = open_source(session, options.source, log, {.metadata_only = !session.common.json});
  if (session.common.json && options.selection.keep_objects) source.reader->load_objects();
  const Selection selection = choose(source.catalog(), options.selection);
  for (const std::string& warning : source.catalog().warnings) warn(session, warning);
  if (session.common.json) {
    source.reader->locate(source_indices(selection.tensors));
    render_json(session, source, selection);
  } else {
    const bool chunks = session.common.verbose > 0;
    if (chunks) source.reader->locate(source_indices(selection.tensors));
    render_text(session, source, selection, chunks);
  }
  return 0;
}

}  // namespace

int run_inspect(Session& session, const Options& options) {
  if (session.end_at_once) session.end_at_once();
  return on_rank_zero(session, [&] { return inspect(session, options); });
}

}  // namespace shard::app
