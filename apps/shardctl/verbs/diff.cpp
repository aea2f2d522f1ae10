#include "apps/shardctl/render/diff.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "apps/shardctl/html/html_page.h"
#include "apps/shardctl/render/report.h"
#include "apps/shardctl/session/progress.h"
#include "apps/shardctl/session/ranks.h"
#include "apps/shardctl/source/block_reader.h"
#include "apps/shardctl/source/cast_choice.h"
#include "apps/shardctl/source/inspect_numbers.h"
#include "apps/shardctl/source/object_check.h"
#include "apps/shardctl/text/value_text.h"
#include "apps/shardctl/verbs/verbs.h"
#include "formats/parts/pickle/equal.h"
#include "libshard/exec/parallel.h"
#include "libshard/exec/reading_groups.h"
#include "libshard/ranks/wire.h"

namespace shard::app {
namespace {

/// One side of the comparison.
struct Side {
  ObjectFaults faults;
  OpenSource source;
  Selection selection;
  const Catalog& catalog() const { return source.catalog(); }
};

bool has_prefix(const Catalog& catalog, const std::string& prefix) {
  const auto starts = [&](const auto& entry) { return entry.name.substr(0, prefix.size()) == prefix; };
  return std::any_of(catalog.tensors.begin(), catalog.tensors.end(), starts) ||
         std::any_of(catalog.objects.begin(), catalog.objects.end(), starts);
}

/// The options for one side: a prefix for both sides that only the other side has is not a mistake.
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

/// Walks two lists that are sorted by name in step: visits each name of A, of B, or of both once.
template <class List, class Visit>
void merge(const List& a, const List& b, const Visit& visit) {
  std::size_t i = 0, j = 0;
  while (i < a.size() || j < b.size()) {
    const int order = i == a.size() ? 1 : j == b.size() ? -1 : a[i].name.compare(b[j].name);
    visit(order <= 0 ? &a[i] : nullptr, order >= 0 ? &b[j] : nullptr);
    i += order <= 0;
    j += order >= 0;
  }
}

std::string_view name_of_tensor(const Catalog& catalog, const Value& tensor) {
  const auto index = static_cast<std::size_t>(tensor.number);
  return index < catalog.tensors.size() ? catalog.tensors[index].name : std::string_view();
}

bool is_same(pickle::Equality& equality, const Side& a, const SelectedObject& x, const Side& b,
             const SelectedObject& y) {
  const Value* in_a = a.catalog().objects[x.source].value;
  const Value* in_b = b.catalog().objects[y.source].value;
  if (in_a == nullptr || in_b == nullptr) return in_a == in_b;
  return equality.is_equal(*in_a, *in_b) && !differ_in_form(a.catalog(), b.catalog(), in_a, in_b);
}

/// Compares names, dtypes, shapes and objects; `values` gets the pairs whose values are still to be compared.
Difference compare_metadata(const Side& a, const Side& b) {
  Difference found;
  merge(a.selection.tensors, b.selection.tensors, [&](const SelectedTensor* x, const SelectedTensor* y) {
    if (y == nullptr) {
      found.only_in_a.push_back(x);
    } else if (x == nullptr) {
      found.only_in_b.push_back(y);
    } else {
      ++found.tensors;
      const bool same_dtype = x->dtype == y->dtype;
      const bool same_shape = a.catalog().tensors[x->source].shape == b.catalog().tensors[y->source].shape;
      if (!same_dtype) found.dtype.push_back({x, y, {}});
      if (!same_shape) found.shape.push_back({x, y, {}});
      if (same_dtype && same_shape) found.values.push_back({x, y, {}});
    }
  });
  const auto same_tensor = [&](const Value& x, const Value& y) {
    return name_of_tensor(a.catalog(), x) == name_of_tensor(b.catalog(), y);
  };
  pickle::Equality equality({.same_tensor = same_tensor, .budget = a.catalog().arena->budget().get()});
  merge(a.selection.objects, b.selection.objects, [&](const SelectedObject* x, const SelectedObject* y) {
    if (x == nullptr || y == nullptr || !is_same(equality, a, *x, b, *y)) found.objects.push_back({x, y});
  });
  return found;
}

/// What one worker may use. If workers shared pools, two could each hold a buffer that the other waits for.
struct WorkerShare {
  WorkerShare(std::int64_t bytes_a_side, int own_threads) : a(bytes_a_side), b(bytes_a_side), threads(own_threads) {}
  BufferPool a, b;
  const int threads;
};

ValueDifference compare_pair(const Side& a, const Side& b, const TensorPair& pair, const Tolerance& tolerance,
                             const std::stop_token& stop, Progress& progress, WorkerShare& share) {
  BlockReader reader_a(a.catalog(), *a.source.reader, *pair.a, progress, share.a, share.threads);
  BlockReader reader_b(b.catalog(), *b.source.reader, *pair.b, progress, share.b, share.threads);
  Comparer comparer(pair.a->dtype, tolerance);
  const std::int64_t step = std::max(reader_a.block_elements(kBlockBytes), reader_b.block_elements(kBlockBytes));
  for (std::int64_t begin = 0; begin < reader_a.elements() && !stop.stop_requested(); begin += step) {
    const std::int64_t end = std::min(begin + step, reader_a.elements());
    const auto block_a = reader_a.read(begin, end);
    comparer.add(begin, end - begin, block_a, reader_b.read(begin, end));
  }
  return comparer.result();
}

void write(WireWriter& to, const ValueDifference& values) {
  to.number(values.elements), to.number(values.differing), to.number(values.first);
  for (const std::optional<double>* real : {&values.max_abs, &values.max_rel}) {
    to.number(real->has_value() ? 1 : 0), to.real(real->value_or(0));
  }
  to.number(values.max_ulp.has_value() ? 1 : 0), to.number(static_cast<std::int64_t>(values.max_ulp.value_or(0)));
  for (const Histogram* histogram : {&values.abs, &values.ulp}) {
    to.number(std::ssize(*histogram));
    for (const HistogramBin& bin : *histogram) to.number(bin.exponent), to.number(bin.count);
  }
}

ValueDifference read_values(WireReader& from) {
  ValueDifference values;
  values.elements = from.number(), values.differing = from.number(), values.first = from.number();
  for (std::optional<double>* real : {&values.max_abs, &values.max_rel}) {
    const bool is_there = from.number() != 0;
    const double number = from.real();
    if (is_there) *real = number;
  }
  const bool is_there = from.number() != 0;
  const std::int64_t ulp = from.number();
  if (is_there) values.max_ulp = static_cast<std::uint64_t>(ulp);
  for (Histogram* histogram : {&values.abs, &values.ulp}) {
    for (std::int64_t bins = from.number(); bins > 0; --bins) {
      const auto exponent = static_cast<int>(from.number());
      histogram->push_back({exponent, from.number()});
    }
  }
  return values;
}

/// Shares what each rank found with all ranks, so that each knows whether the two differ.
void collect(Group& group, std::size_t first, std::size_t last, std::vector<TensorPair>& pairs) {
  WireWriter own;
  own.number(static_cast<std::int64_t>(first));
  for (std::size_t i = first; i < last; ++i) write(own, pairs[i].values);
  for (const Bytes& piece : all_gather(group, own.take())) {
    WireReader from(piece);
    for (auto i = static_cast<std::size_t>(from.number()); !from.at_end(); ++i) pairs.at(i).values = read_values(from);
  }
}

void compare_values(Session& session, const Request& options, Side& a, Side& b, Difference& found, Log& log) {
  std::vector<std::int64_t> bytes;
  for (const TensorPair& pair : found.values) {
    bytes.push_back(2 * packed_bytes(element_count(a.catalog().tensors[pair.a->source].shape), pair.a->dtype));
  }
  const auto [first, last] = own_share(session, bytes);
  std::vector<std::uint32_t> in_a, in_b;
  for (std::size_t i = first; i < last; ++i) {
    in_a.push_back(found.values[i].a->source);
    in_b.push_back(found.values[i].b->source);
  }
  const Tolerance tolerance{options.diff.atol, options.diff.rtol, options.diff.ulp, options.diff.equal_nan};
  Progress progress;
  ProgressMeter meter(
      session, log, "diff", [&] { return progress.bytes_read.load(); }, progress.others_bytes);
  meter.set_total(std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0}));
  const std::span own = std::span(found.values).subspan(first, last - first);
  on_all_ranks(session, progress.bytes_read, progress.others_bytes, meter.awaited(), [&](const std::stop_token& stop) {
    a.source.reader->locate(in_a);
    b.source.reader->locate(in_b);
    const std::vector<std::vector<std::size_t>> groups = reading_groups(a.catalog(), in_a);
    const int threads = worker_count(session);
    const int workers = static_cast<int>(std::clamp(groups.size(), std::size_t{1}, static_cast<std::size_t>(threads)));
    const std::int64_t bytes_a_side = reading_memory_bytes(session) / 2 / workers;
    for_each_index(groups.size(), workers, stop, [&]() -> IndexWorker {
      return [&, share = std::make_shared<WorkerShare>(bytes_a_side, threads / workers)](std::size_t group) {
        for (const std::size_t i : groups[group]) {
          own[i].values = compare_pair(a, b, own[i], tolerance, stop, progress, *share);
        }
      };
    });
  });
  if (session.group->size() > 1) collect(*session.group, first, last, found.values);
  std::erase_if(found.values, [](const TensorPair& pair) { return pair.values.differing == 0; });
}

void open_sides(Session& session, const Request& options, Side& a, Side& b, Log& log) {
  ReadRequest side = options.source;
  for (const auto& [to, path] : {std::pair{&a, options.source.paths[0]}, std::pair{&b, options.source.paths[1]}}) {
    side.paths = {path};
    side.map = to == &a ? options.source.map : options.target.map;
    // One side may well be a whole one.
    to->source = open_source(
        session, side, log,
        {.may_lack_ranks = true, .may_lack_weights = true, .selection = &options.selection, .findings = &to->faults});
    warn_of_source(session, to->source);
  }
  check_weights(options.source, {&a.source, &b.source});
  if (options.selection.keep_objects) {
    a.source.reader->load_objects();
    b.source.reader->load_objects();
  }
  check_include({&a.catalog(), &b.catalog()}, options.selection);
  const bool all = options.selection.include.empty();
  const SelectionOptions for_a = options_for(options.selection, options.diff.names_a, a.catalog(), b.catalog());
  const SelectionOptions for_b = options_for(options.selection, options.diff.names_b, b.catalog(), a.catalog());
  a.selection = all ? choose(a.catalog(), for_a) : select(a.catalog(), for_a);
  b.selection = all ? choose(b.catalog(), for_b) : select(b.catalog(), for_b);
  for (const auto& [each, selection] : {std::pair(&a, &for_a), std::pair(&b, &for_b)}) {
    const std::vector<std::string> warnings = checked_casts(session, options, each->source, each->selection.tensors);
    if (is_rank_zero(session)) warn_all(session, warnings);
    check_objects(
        each->catalog(),
        {.selection = *selection, .arguments = options.arguments, .done = "compared", .faults = &each->faults});
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

void check_diff(const Session&, Request& options) {
  if (options.source.paths.size() != 2) {
    throw usage(fmt::format("diff compares two checkpoints, {} given", options.source.paths.size()))
        .hint("give two: shardctl diff A B");
  }
  const DiffRequest& diff = options.diff;
  if (!(diff.atol >= 0) || !(diff.rtol >= 0) || diff.ulp < 0) {
    throw usage("--atol, --rtol and --ulp must not be negative");
  }
  if (diff.max_diffs && *diff.max_diffs < 0) throw usage("--max-diffs must not be negative");
}

int run_diff(Session& session, const Request& options) {
  allow_sudden_end(session, options);
  const auto log = open_log(session);
  Side a, b;
  Difference found;
  std::optional<HtmlPage> page;
  on_all_ranks(session, "catalog", [&] {
    page.emplace(session, options);
    open_sides(session, options, a, b, *log);
    found = compare_metadata(a, b);
  });
  compare_values(session, options, a, b, found, *log);
  expect_unchanged_source(session);
  const auto limit = options.diff.max_diffs ? static_cast<std::size_t>(*options.diff.max_diffs)
                                            : std::numeric_limits<std::size_t>::max();
  const Compared compared{{a.source.label, a.catalog()}, {b.source.label, b.catalog()}, found, limit};
  if (!options.page.path.empty()) {
    on_all_ranks(session, "page", [&] { page->write([&](JsonWriter& json) { render_json(json, compared); }); });
  }
  if (is_rank_zero(session)) print(session, compared);
  return found.equal() ? 0 : kExitDiffers;
}

}  // namespace shard::app
