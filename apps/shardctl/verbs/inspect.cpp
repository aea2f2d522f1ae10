#include "apps/shardctl/render/inspect.h"

#include <fmt/format.h>

#include "apps/shardctl/html/html_page.h"
#include "apps/shardctl/request/request.h"
#include "apps/shardctl/session/ranks.h"
#include "apps/shardctl/source/cast_choice.h"
#include "apps/shardctl/verbs/verbs.h"
#include "libshard/core/error.h"
#include "libshard/core/object_faults.h"
#include "libshard/core/short_text.h"

namespace shard::app {

namespace {

/// If reading the values of objects would take more than this, only --json shows them.
constexpr std::int64_t kMaxObjectBytes = 1 << 20;

/// Loads values for the text output if they are cheap to read. Unreadable values do not prevent the rest.
void load_cheap_objects(Session& session, const OpenSource& source) {
  if (source.reader->unread_object_bytes() > kMaxObjectBytes) return;
  try {
    source.reader->load_objects();
  } catch (const Error& error) {
    warn(session, fmt::format("cannot read the values of objects: {}", error.what()));
  }
}

/// Fails if an object could not be read; values of classes that are not read by default only cause a warning.
void judge_faults(Session& session, const OpenSource& source, const ObjectFaults& faults, bool is_document) {
  if (faults.empty()) return;
  FirstNames names;
  for (const auto& [name, fault] : faults.all()) {
    const bool is_foreign = fault.kind() == FindingKind::kForbiddenGlobal;
    if (!source.format->objects_apart || (is_document && !is_foreign)) throw Error(fault);
    names.add(name);
  }
  warn(session, fmt::format("cannot read the values of objects: {}: {}", names.text(), faults.first().what()));
}

/// Finds the locations of tensors' elements. A tensor of an unreadable kind has no location, but is still listed.
void locate(Session& session, const OpenSource& source, std::span<const std::uint32_t> tensors) {
  std::vector<std::span<const std::uint32_t>> open{tensors};
  FirstNames unread;
  std::string why;
  while (!open.empty()) {
    const std::span<const std::uint32_t> part = open.back();
    open.pop_back();
    try {
      source.reader->locate(part);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kUnsupported) throw;
      const std::size_t half = part.size() / 2;
      if (part.size() == 1) {
        unread.add(source.catalog().tensors[part.front()].name);
        if (why.empty()) why = error.what();
      } else {
        open.push_back(part.subspan(half));
        open.push_back(part.first(half));
      }
    }
  }
  if (unread.count() > 0) warn(session, fmt::format("cannot read the elements of {}: {}", unread.text(), why));
}

int inspect(Session& session, const Request& request) {
  const CommonOptions& common = session.common;
  Log log(session);
  const HtmlPage page(session, request.page, request.read);
  const bool is_document = common.json || page.is_wanted();
  ObjectFaults faults;
  OpenSource source = open_source(session, request.read, log,
                                  {.metadata_only = !is_document, .selection = &request.select, .findings = &faults});
  if (request.select.keep_objects) {
    is_document ? source.reader->load_objects() : load_cheap_objects(session, source);
  }
  judge_faults(session, source, faults, is_document);
  const Selection selection = choose(source.catalog(), request.select);
  warn_all(session, source.catalog().warnings);
  warn_all(session, checked_casts(session, request.select, source, selection.tensors));
  const bool chunks = common.verbose > 0;
  if (is_document || chunks) locate(session, source, source_indices(selection.tensors));
  page.write([&](JsonWriter& json) { render_json(json, source, selection); });
  if (common.json) {
    JsonWriter json(session.out);
    render_json(json, source, selection);
  } else {
    render_text(session, source, selection, {.chunks = chunks, .join_layers = !request.inspect.all && !chunks});
  }
  return 0;
}

}  // namespace

int run_inspect(Session& session, const Request& request) {
  allow_sudden_end(session, request.page);
  return on_rank_zero(session, [&] { return inspect(session, request); });
}

}  // namespace shard::app
