#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <limits>
#include <string>

#include "apps/shardctl/html/html_page.h"
#include "apps/shardctl/render/report.h"
#include "apps/shardctl/request/request.h"
#include "apps/shardctl/session/progress.h"
#include "apps/shardctl/session/ranks.h"
#include "apps/shardctl/session/session.h"
#include "apps/shardctl/source/cast_choice.h"
#include "apps/shardctl/source/object_check.h"
#include "apps/shardctl/text/text_sink.h"
#include "apps/shardctl/text/value_text.h"
#include "apps/shardctl/verbs/verbs.h"
#include "libshard/catalog/catalog.h"
#include "libshard/catalog/originals.h"
#include "libshard/compare/difference.h"
#include "libshard/core/box.h"
#include "libshard/core/json_writer.h"
#include "libshard/core/python_text.h"
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
  const auto starts = [&](const auto& entry) { return entry.name.starts_with(prefix); };
  return std::ranges::any_of(catalog.tensors, starts) || std::ranges::any_of(catalog.objects, starts);
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
  check_globs({&a.catalog(), &b.catalog()}, request.select);
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

/// One of the two checkpoints.
struct ShownSide {
  const std::string& label;  ///< The source as the user wrote it.
  const Catalog& catalog;
};

/// The parts of a comparison for printing. Ownership: borrows all of them.
struct Compared {
  ShownSide a, b;
  const Difference& difference;
  std::size_t limit;  ///< At most this many entries of each kind are listed.
};

std::vector<std::int64_t> index_of(std::int64_t element, Dims shape) {
  std::vector<std::int64_t> index(static_cast<std::size_t>(shape.size()));
  set_index<std::int64_t>(index, shape, element);
  return index;
}

Dims shape_in(const Catalog& catalog, const SelectedTensor& tensor) { return catalog.tensors[tensor.source].shape; }

std::string object_text(const Catalog& catalog, const SelectedObject* object) {
  return object == nullptr ? "absent" : value_text(catalog, catalog.objects[object->source].value, kObjectPreview);
}

/// Prints the form of an object whose value does not differ; nothing for other objects.
std::string_view form_text(const Catalog& a, const Catalog& b, const ObjectPair& pair, bool is_of_a) {
  if (pair.a == nullptr || pair.b == nullptr) return {};
  const Value *in_a = a.objects[pair.a->source].value, *in_b = b.objects[pair.b->source].value;
  if (!differ_in_form(a, b, in_a, in_b)) return {};
  return (is_of_a ? a : b).originals->stored_as(is_of_a ? in_a : in_b)->shown;
}

std::string with_form(const std::string& text, std::string_view form) {
  return form.empty() ? text : fmt::format("{} ({})", text, form);
}

std::string value_line(const TensorPair& pair, Dims shape) {
  const ValueDifference& v = pair.values;
  std::string line = fmt::format("values {}: {} of {} differ", pair.a->name, v.differing, v.elements);
  if (v.max_abs) line += fmt::format(", max abs {}, rel {}", real_text(*v.max_abs), real_text(*v.max_rel));
  if (v.max_ulp) line += fmt::format(", ulp {}", *v.max_ulp);
  return line + fmt::format(", first at [{}]", fmt::join(index_of(v.first, shape), ", "));
}

/// Calls `print` for the first `limit` items and prints the number of the others.
template <class List, class Print>
void list_some(TextSink& sink, const List& list, std::size_t limit, const char* what, const Print& print) {
  for (std::size_t i = 0; i < std::min(limit, list.size()); ++i) sink.line(print(list[i]));
  if (list.size() > limit) sink.line(fmt::format("... {} more: {}", list.size() - limit, what));
}

template <class List>
auto first_of(const List& list, std::size_t limit) {
  return std::span(list).first(std::min(list.size(), limit));
}

void optional_real(JsonWriter& json, std::string_view name, const std::optional<double>& value) {
  json.key(name), value ? json.real(*value) : json.null();
}

/// Pairs of exponent and count.
void write_histogram(JsonWriter& json, std::string_view name, const Histogram& histogram) {
  json.key(name), json.list(histogram, [&](const HistogramBin& bin) {
    json.begin_array(), json.number(bin.exponent), json.number(bin.count), json.end_array();
  });
}

void write_values(JsonWriter& json, const TensorPair& pair, Dims shape) {
  json.key("name"), json.string(pair.a->name);
  json.key("elements"), json.number(pair.values.elements);
  json.key("differing"), json.number(pair.values.differing);
  optional_real(json, "max_abs", pair.values.max_abs);
  optional_real(json, "max_rel", pair.values.max_rel);
  json.key("max_ulp"), pair.values.max_ulp ? json.number(*pair.values.max_ulp) : json.null();
  json.key("first_index"), json.numbers(index_of(pair.values.first, shape));
  json.key("dtype"), json.string(dtype_name(pair.a->dtype));
  json.key("shape"), json.numbers(shape);
  write_histogram(json, "abs_histogram", pair.values.abs);
  write_histogram(json, "ulp_histogram", pair.values.ulp);
}

void write_side(JsonWriter& json, std::string_view side, const Catalog& catalog, const SelectedObject* object) {
  if (object == nullptr) return;
  const Value* value = catalog.objects[object->source].value;
  json.key(side);
  if (is_scalar(value)) {
    write_value(json, value);
  } else {
    json.string(value_text(catalog, value, kObjectPreview));
  }
}

/// The number of entries of each list, regardless of the limit.
void write_counts(JsonWriter& json, const Difference& difference) {
  json.key("counts"), json.begin_object();
  json.key("only_in_a"), json.number(difference.only_in_a.size());
  json.key("only_in_b"), json.number(difference.only_in_b.size());
  json.key("dtype"), json.number(difference.dtype.size());
  json.key("shape"), json.number(difference.shape.size());
  json.key("values"), json.number(difference.values.size());
  json.key("objects"), json.number(difference.objects.size());
  json.end_object();
}

/// Prints lines for people.
void print_difference(const Session& session, const Compared& compared) {
  const auto& [side_a, side_b, difference, limit] = compared;
  const Catalog &a = side_a.catalog, &b = side_b.catalog;
  TextSink sink(session.out);
  const auto only = [](const char* side) {
    return [side](const SelectedTensor* tensor) { return fmt::format("only in {} {}", side, tensor->name); };
  };
  list_some(sink, difference.only_in_a, limit, "only in A", only("A"));
  list_some(sink, difference.only_in_b, limit, "only in B", only("B"));
  list_some(sink, difference.dtype, limit, "dtype", [](const TensorPair& pair) {
    return fmt::format("dtype {}: {} in A, {} in B", pair.a->name, dtype_name(pair.a->dtype),
                       dtype_name(pair.b->dtype));
  });
  list_some(sink, difference.shape, limit, "shape", [&](const TensorPair& pair) {
    return fmt::format("shape {}: {} in A, {} in B", pair.a->name, to_string(shape_in(a, *pair.a)),
                       to_string(shape_in(b, *pair.b)));
  });
  list_some(sink, difference.values, limit, "values",
            [&](const TensorPair& pair) { return value_line(pair, shape_in(a, *pair.a)); });
  list_some(sink, difference.objects, limit, "objects", [&](const ObjectPair& pair) {
    const auto name = pair.a != nullptr ? pair.a->name : pair.b->name;
    return fmt::format("object {}: {} in A, {} in B", name,
                       with_form(object_text(a, pair.a), form_text(a, b, pair, true)),
                       with_form(object_text(b, pair.b), form_text(a, b, pair, false)));
  });
}

/// Prints one `shardctl.diff/1`.
void write_difference(JsonWriter& json, const Compared& compared) {
  const Difference& difference = compared.difference;
  const Catalog &a = compared.a.catalog, &b = compared.b.catalog;
  json.document("shardctl.diff/1", [&] {
    json.key("equal"), json.boolean(difference.equal());
    json.key("a"), json.string(compared.a.label);
    json.key("b"), json.string(compared.b.label);
    json.key("tensor_count"), json.number(difference.tensors);
    write_counts(json, difference);
    const auto names = [&](std::string_view key, const std::vector<const SelectedTensor*>& list) {
      json.line(1);
      json.key(key), json.list(first_of(list, compared.limit), [&](const auto* each) { json.string(each->name); });
    };
    const auto objects = [&](std::string_view key, const auto& list, const auto& write) {
      json.line(1);
      json.key(key), json.objects(first_of(list, compared.limit), write);
    };
    names("only_in_a", difference.only_in_a);
    names("only_in_b", difference.only_in_b);
    objects("dtype", difference.dtype, [&](const TensorPair& pair) {
      json.key("name"), json.string(pair.a->name);
      json.key("a"), json.string(dtype_name(pair.a->dtype));
      json.key("b"), json.string(dtype_name(pair.b->dtype));
    });
    objects("shape", difference.shape, [&](const TensorPair& pair) {
      json.key("name"), json.string(pair.a->name);
      json.key("a"), json.numbers(shape_in(a, *pair.a));
      json.key("b"), json.numbers(shape_in(b, *pair.b));
    });
    objects("values", difference.values,
            [&](const TensorPair& pair) { write_values(json, pair, shape_in(a, *pair.a)); });
    objects("objects", difference.objects, [&](const ObjectPair& pair) {
      json.key("name"), json.string(pair.a != nullptr ? pair.a->name : pair.b->name);
      write_side(json, "a", a, pair.a);
      write_side(json, "b", b, pair.b);
      if (const std::string_view form = form_text(a, b, pair, true); !form.empty()) {
        json.key("form_a"), json.string(form);
        json.key("form_b"), json.string(form_text(a, b, pair, false));
      }
    });
  });
}

void print(const Session& session, const Compared& compared) {
  if (session.common.json) {
    JsonWriter json(session.out);
    return write_difference(json, compared);
  }
  print_difference(session, compared);
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
    on_all_ranks(session, "page", [&] { page->write([&](JsonWriter& json) { write_difference(json, compared); }); });
  }
  if (is_rank_zero(session)) print(session, compared);
  return found.equal() ? 0 : kExitDiffers;
}

}  // namespace shard::app
