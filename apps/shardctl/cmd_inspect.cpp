#include "apps/shardctl/render_inspect.h"
#include "apps/shardctl/verbs.h"

namespace shard::app {

int run_inspect(Session& session, const Options& options) {
  if (session.end_at_once) session.end_at_once();
  Log log(session, options);
  OpenSource source = open_source(session, options, options.sources, log);
  if (options.json && options.selection.keep_objects) source.reader->load_objects();
  const Selection selection = choose(source.catalog(), options.selection);
  for (const std::string& warning : source.catalog().warnings) warn(session, options, warning);
  if (options.json) {
    source.reader->locate(source_indices(selection));
    render_json(session, source, selection);
  } else {
    const bool chunks = options.verbose > 0;
    if (chunks) source.reader->locate(source_indices(selection));
    render_text(session, source, selection, chunks);
  }
  return 0;
}

}  // namespace shard::app
