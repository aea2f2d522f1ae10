#include "apps/shardctl/render/diff.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>

#include "apps/shardctl/html/html_page.h"
#include "apps/shardctl/render/report.h"
#include "apps/shardctl/request/request.h"
#include "apps/shardctl/session/progress.h"
#include "apps/shardctl/session/ranks.h"
#include "apps/shardctl/source/cast_choice.h"
#include "apps/shardctl/source/object_check.h"
#include "apps/shardctl/text/value_text.h"
#include "apps/shardctl/verbs/verbs.h"
#include "libshard/compare/difference.h"
#include "libshard/core/short_text.h"

namespace shard::app {
namespace {

/// One side of the comparison.
struct Side {
  ObjectFaults faults;
  OpenSource source;
  Selection selection;
  const Catalog& catalog() const { return source.catalog(); }
  ComparedSide compared() const { return {*source.reader, selection}; }
};

bool has_prefix(const Catalog& catalog, const std::string& prefix) {
  const auto starts = [&](const auto& entry) { return entry.name.substr(0, prefix.size()) == prefix; };
  return std::any_of(catalog.tensors.begin(), catalog.tensors.end(), starts) ||
         std::any_of(catalog.objects.begin(), catalog.objects.end(), starts);
}

/// The options for one side. A prefix for both sides may be on only one of them.
SelectionOptions options_for(const SelectionOptions& options, const SideNames& own, const Catalog& mine,
                             const Catalog& other) {
  SelectionOptions result = options;
  std::erase_if(result.strip_prefix,
                [&](const std::string& prefix) { return !has_prefix(mine, prefix) && has_prefix(other, prefix); });
  const auto add = [](std::vector<std::string>& to, const std::vector<std::string>& more) {
    to.insert(to.end(), more.begin(), more.end());
  };
  add(result.strip_prefix, own.strip_prefix);
  add(result.add_prefix, own.add_prefix);
  add(result.rename, own.rename);
  return result;
}

void compare_values(Session& session, const DiffRequest& diff, const ComparedSide& a, const ComparedSide& b,
                    Difference& found, Log& log) {
  const Tolerance tolerance{diff.atol, diff.rtol, diff.ulp, diff.equal_nan};
  Progress progress;
  ProgressMeter meter(
      session, log, "diff", [&] { return progress.bytes_read.load(); }, progress.others_bytes);
  ValuePass pass(a, b, found, tolerance, pass_options(session), *session.group, progress);
  meter.set_total(pass.total_bytes());
  on_all_ranks(session, progress.bytes_read, progress.others_bytes, meter.awaited(),
               [&](const std::stop_token& stop) { pass.read(stop); });
  pass.finish();
}

void open_sides(Session& session, const Request& request, Side& a, Side& b, Log& log) {
  ReadRequest side = request.read;
  for (const auto& [to, path] : {std::pair{&a, request.read.paths[0]}, std::pair{&b, request.read.paths[1]}}) {
    side.paths = {path};
    side.map = to == &a ? request.read.map : request.write.map;
    if (to == &b) side.adapters.clear();
    // One side may be sharded while the other is not.
    to->source = open_source(
        session, side, log,
        {.may_lack_ranks = true, .may_lack_choices = true, .selection = &request.select, .findings = &to->faults});
    warn_of_source(session, to->source);
  }
  check_choices(request.read, std::array<const OpenSource*, 2>{&a.source, &b.source});
  if (request.select.keep_objects) {
    a.source.reader->load_objects();
    b.source.reader->load_objects();
  }
  check_include({&a.catalog(), &b.catalog()}, request.select);
  const bool all = request.select.include.empty();
  const SelectionOptions for_a = options_for(request.select, request.diff.names_a, a.catalog(), b.catalog());
  const SelectionOptions for_b = options_for(request.select, request.diff.names_b, b.catalog(), a.catalog());
  a.selection = all ? choose(a.catalog(), for_a) : select(a.catalog(), for_a);
  b.selection = all ? choose(b.catalog(), for_b) : select(b.catalog(), for_b);
  for (const auto& [each, selection] : {std::pair(&a, &for_a), std::pair(&b, &for_b)}) {
    const std::vector<std::string> warnings =
        checked_casts(session, request.select, each->source, each->selection.tensors);
    if (is_rank_zero(session)) warn_all(session, warnings);
    check_objects(
        each->catalog(),
        {.selection = *selection, .arguments = session.command.arguments, .done = "compared", .faults = &each->faults});
  }
}

void print(const Session& session, const Compared& compared) {
  if (session.common.json) {
    JsonWriter json(session.out);
    return render_json(json, compared);
  }
  render_text(session, compared);
  const Difference& found = compared.difference;
  note(session, fmt::format("{}: {} compared", found.equal() ? "equal" : "differs", plural(found.tensors, "tensor")));
}

}  // namespace

void check_diff(const Session&, Request& request) {
  if (request.read.paths.size() != 2) {
    throw usage(fmt::format("diff compares two checkpoints, {} given", request.read.paths.size()))
        .hint("give two: shardctl diff A B");
  }
  const DiffRequest& diff = request.diff;
  if (!(diff.atol >= 0) || !(diff.rtol >= 0) || diff.ulp < 0) {
    throw usage("--atol, --rtol and --ulp must not be negative");
  }
  if (diff.max_diffs && *diff.max_diffs < 0) throw usage("--max-diffs must not be negative");
}

int run_diff(Session& session, const Request& request) {
  allow_sudden_end(session, request.page);
  const auto log = open_log(session);
  Side a, b;
  Difference found;
  std::optional<HtmlPage> page;
  on_all_ranks(session, "catalog", [&] {
    page.emplace(session, request.page, request.read);
    open_sides(session, request, a, b, *log);
    found = compare_entries(a.compared(), b.compared());
  });
  compare_values(session, request.diff, a.compared(), b.compared(), found, *log);
  expect_unchanged_source(session);
  const auto limit = request.diff.max_diffs ? static_cast<std::size_t>(*request.diff.max_diffs)
                                            : std::numeric_limits<std::size_t>::max();
  const Compared compared{{a.source.label, a.catalog()}, {b.source.label, b.catalog()}, found, limit};
  if (!request.page.path.empty()) {
    on_all_ranks(session, "page", [&] { page->write([&](JsonWriter& json) { render_json(json, compared); }); });
  }
  if (is_rank_zero(session)) print(session, compared);
  return found.equal() ? 0 : kExitDiffers;
}

}  // namespace shard::app
