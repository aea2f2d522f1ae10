#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "apps/shardctl/block_reader.h"
#include "apps/shardctl/inspect_numbers.h"
#include "apps/shardctl/progress.h"
#include "apps/shardctl/render_diff.h"
#include "apps/shardctl/report.h"
#include "apps/shardctl/value_text.h"
#include "apps/shardctl/verbs.h"
#include "libshard/exec/parallel.h"

namespace shard::app {
namespace {

constexpr std::int64_t kBlockBytes = 1 << 20;

/// One side of the comparison.
struct Side {
  OpenSource source;
  Selection selection;
  const Catalog& catalog() const { return source.catalog(); }
};

bool has_prefix(const Catalog& catalog, const std::string& prefix) {
  const auto starts = [&](const auto& entry) { return entry.name.substr(0, prefix.size()) == prefix; };
  return std::any_of(catalog.tensors.begin(), catalog.tensors.end(), starts) ||
         std::any_of(catalog.objects.begin(), catalog.objects.end(), starts);
}

/// The options for one side: a prefix that only the other side has is no mistake there.
SelectionOptions options_for(const SelectionOptions& options, const Catalog& mine, const Catalog& other) {
  SelectionOptions result = options;
  std::erase_if(result.strip_prefix,
                [&](const std::string& prefix) { return !has_prefix(mine, prefix) && has_prefix(other, prefix); });
  return result;
}

/// Walks two lists sorted by name together: each name of A, of B, or of both once.
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

/// Names, dtypes, shapes and objects; the pairs whose values are still to be compared stand in `values`.
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
  merge(a.selection.objects, b.selection.objects, [&](const SelectedObject* x, const SelectedObject* y) {
    const bool same = x != nullptr && y != nullptr &&
                      value_fingerprint(a.catalog(), a.catalog().objects[x->source].value) ==
                          value_fingerprint(b.catalog(), b.catalog().objects[y->source].value);
    if (!same) found.objects.push_back({x, y});
  });
  return found;
}

ValueDifference compare_pair(const Side& a, const Side& b, const TensorPair& pair, const Tolerance& tolerance,
                             const std::stop_token& stop, Progress& progress) {
  BlockReader reader_a(a.catalog(), *a.source.reader, *pair.a, progress);
  BlockReader reader_b(b.catalog(), *b.source.reader, *pair.b, progress);
  Comparer comparer(pair.a->dtype, tolerance);
  const std::int64_t step = std::max(reader_a.block_elements(kBlockBytes), reader_b.block_elements(kBlockBytes));
  for (std::int64_t begin = 0; begin < reader_a.elements() && !stop.stop_requested(); begin += step) {
    const std::int64_t end = std::min(begin + step, reader_a.elements());
    const auto block_a = reader_a.read(begin, end);
    comparer.add(begin, end - begin, block_a, reader_b.read(begin, end));
  }
  return comparer.result();
}

void compare_values(Session& session, const Options& options, Side& a, Side& b, Difference& found) {
  std::vector<std::uint32_t> in_a, in_b;
  std::int64_t bytes = 0;
  for (const TensorPair& pair : found.values) {
    in_a.push_back(pair.a->source);
    in_b.push_back(pair.b->source);
    bytes += 2 * packed_bytes(element_count(a.catalog().tensors[pair.a->source].shape), pair.a->dtype);
  }
  a.source.reader->locate(in_a);
  b.source.reader->locate(in_b);
  const Tolerance tolerance{options.atol, options.rtol, options.ulp, options.equal_nan};
  Progress progress;
  ProgressMeter meter(session, options, "diff", [&] { return progress.bytes_read.load(); });
  meter.set_total(bytes);
  for_each_index(found.values.size(), worker_count(options), session.stop, [&]() -> IndexWorker {
    return [&](std::size_t i) {
      found.values[i].values = compare_pair(a, b, found.values[i], tolerance, session.stop, progress);
    };
  });
  std::erase_if(found.values, [](const TensorPair& pair) { return pair.values.differing == 0; });
}

}  // namespace

int run_diff(Session& session, const Options& options) {
  if (session.end_at_once) session.end_at_once();
  Log log(session, options);
  Side a{open_source(session, options, {options.sources[0]}, log), {}};
  Side b{open_source(session, options, {options.sources[1]}, log), {}};
  if (options.selection.keep_objects) {
    a.source.reader->load_objects();
    b.source.reader->load_objects();
  }
  check_include({&a.catalog(), &b.catalog()}, options.selection);
  const bool all = options.selection.include.empty();
  const SelectionOptions for_a = options_for(options.selection, a.catalog(), b.catalog());
  const SelectionOptions for_b = options_for(options.selection, b.catalog(), a.catalog());
  a.selection = all ? choose(a.catalog(), for_a) : select(a.catalog(), for_a);
  b.selection = all ? choose(b.catalog(), for_b) : select(b.catalog(), for_b);
  refuse_obstacles(a.catalog(), for_a, options, "compared");
  refuse_obstacles(b.catalog(), for_b, options, "compared");
  Difference found = compare_metadata(a, b);
  compare_values(session, options, a, b, found);
  const auto limit =
      options.max_diffs ? static_cast<std::size_t>(*options.max_diffs) : std::numeric_limits<std::size_t>::max();
  if (options.json) {
    render_json(session, found, a.catalog(), b.catalog(), limit);
  } else {
    render_text(session, found, a.catalog(), b.catalog(), limit);
    note(session, options,
         fmt::format("{}: {} tensor{} compared", found.equal() ? "equal" : "differs", found.tensors,
                     found.tensors == 1 ? "" : "s"));
  }
  return found.equal() ? 0 : kExitDiffers;
}

}  // namespace shard::app
