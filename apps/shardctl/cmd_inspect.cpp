#include <fmt/format.h>

#include "apps/shardctl/ranks.h"
#include "apps/shardctl/render_inspect.h"
#include "apps/shardctl/verbs.h"
#include "libshard/core/error.h"

namespace shard::app {

namespace {

/// Reading more than this for the values of objects is left to --json.
constexpr std::int64_t kMaxObjectBytes = 1 << 20;

/// Text shows values that cost little; a value that cannot be read does not keep it from showing the rest.
void load_cheap_objects(Session& session, const OpenSource& source) {
  if (source.reader->unread_object_bytes() > kMaxObjectBytes) return;
  try {
    source.reader->load_objects();
  } catch (const Error& error) {
    warn(session, fmt::format("cannot read the values of objects: {}", error.what()));
  }
}

int inspect(Session& session, const Options& options) {
  const CommonOptions& common = session.common;
  Log log(session);
  OpenSource source =
      open_source(session, options.source, log, {.metadata_only = !common.json, .selection = &options.selection});
  if (options.selection.keep_objects) {
    common.json ? source.reader->load_objects() : load_cheap_objects(session, source);
  }
  const Selection selection = choose(source.catalog(), options.selection);
  warn_all(session, source.catalog().warnings);
  const bool chunks = common.verbose > 0;
  if (common.json || chunks) source.reader->locate(source_indices(selection.tensors));
  if (common.json) {
    render_json(session, source, selection);
  } else {
    render_text(session, source, selection, {.chunks = chunks, .join_layers = !options.inspect.all && !chunks});
  }
  return 0;
}

}  // namespace

int run_inspect(Session& session, const Options& options) {
  if (session.end_at_once) session.end_at_once();
  return on_rank_zero(session, [&] { return inspect(session, options); });
}

}  // namespace shard::app
