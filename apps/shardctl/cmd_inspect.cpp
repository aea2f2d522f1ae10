#include "apps/shardctl/ranks.h"
#include "apps/shardctl/render_inspect.h"
#include "apps/shardctl/verbs.h"

namespace shard::app {

namespace {

int inspect(Session& session, const Options& options) {
  Log log(session, options);
  OpenSource source = open_source(session, options, options.sources, log);
  if (options.json && options.selection.keep_objects) source.reader->load_objects();
  const Selection selection = choose(source.catalog(), options.selection);
  for (const std::string& warning : source.catalog().warnings) warn(session, options, warning);
  if (options.json) {
    source.reader->locate(source_indices(selection.tensors));
    render_json(session, source, selection);
  } else {
    const bool chunks = options.verbose > 0;
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
