#include <fmt/format.h>

#include "apps/shardctl/cast_choice.h"
#include "apps/shardctl/html_page.h"
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
  const HtmlPage page(session, options);
  const bool is_document = common.json || page.is_wanted();
  OpenSource source =
      open_source(session, options.source, log, {.metadata_only = !is_document, .selection = &options.selection});
  if (options.selection.keep_objects) {
    is_document ? source.reader->load_objects() : load_cheap_objects(session, source);
  }
  const Selection selection = choose(source.catalog(), options.selection);
  warn_all(session, source.catalog().warnings);
  warn_all(session, checked_casts(session, options, source, selection.tensors));
  const bool chunks = common.verbose > 0;
  if (is_document || chunks) source.reader->locate(source_indices(selection.tensors));
  page.write([&](JsonWriter& json) { render_json(json, source, selection); });
  if (common.json) {
    JsonWriter json(session.out);
    render_json(json, source, selection);
  } else {
    render_text(session, source, selection, {.chunks = chunks, .join_layers = !options.inspect.all && !chunks});
  }
  return 0;
}

}  // namespace

int run_inspect(Session& session, const Options& options) {
  allow_sudden_end(session, options);
  return on_rank_zero(session, [&] { return inspect(session, options); });
}

}  // namespace shard::app
