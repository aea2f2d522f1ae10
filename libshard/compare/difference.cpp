#include "libshard/compare/difference.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <span>
#include <string_view>
#include <tuple>
#include <utility>

#include "libshard/catalog/element_counts.h"
#include "libshard/catalog/originals.h"
#include "libshard/compare/block_reader.h"
#include "libshard/core/value_equality.h"
#include "libshard/exec/buffer_pool.h"
#include "libshard/exec/parallel.h"
#include "libshard/exec/reading_groups.h"
#include "libshard/ranks/wire.h"

namespace shard {

namespace {

/// Walks two lists that are sorted by name in step. Visits each name once, with its entry in A, in B, or in both.
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

bool is_same(ValueEquality& equality, const Catalog& a, const SelectedObject& x, const Catalog& b,
             const SelectedObject& y) {
  const Value *in_a = a.objects[x.source].value, *in_b = b.objects[y.source].value;
  if (in_a == nullptr || in_b == nullptr) return in_a == in_b;
  return equality.is_equal(*in_a, *in_b) && !differ_in_form(a, b, in_a, in_b);
}

/// Resources of one worker. If workers shared pools, two could each hold a buffer that the other waits for.
struct WorkerShare {
  WorkerShare(std::int64_t bytes_a_side, int own_threads) : a(bytes_a_side), b(bytes_a_side), threads(own_threads) {}
  BufferPool a, b;
  const int threads;
};

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

}  // namespace

bool differ_in_form(const Catalog& a, const Catalog& b, const Value* in_a, const Value* in_b) {
  if (a.originals == nullptr || b.originals == nullptr || a.originals->format != b.originals->format) return false;
  const StoredObject *stored_a = a.originals->stored_as(in_a), *stored_b = b.originals->stored_as(in_b);
  return stored_a != nullptr && stored_b != nullptr && stored_a->form != stored_b->form;
}

Difference compare_entries(const ComparedSide& a, const ComparedSide& b) {
  const Catalog &in_a = a.catalog(), &in_b = b.catalog();
  Difference found;
  merge(a.selection.tensors, b.selection.tensors, [&](const SelectedTensor* x, const SelectedTensor* y) {
    if (y == nullptr) {
      found.only_in_a.push_back(x);
    } else if (x == nullptr) {
      found.only_in_b.push_back(y);
    } else {
      ++found.tensors;
      const bool same_dtype = x->dtype == y->dtype;
      const bool same_shape = in_a.tensors[x->source].shape == in_b.tensors[y->source].shape;
      if (!same_dtype) found.dtype.push_back({x, y, {}});
      if (!same_shape) found.shape.push_back({x, y, {}});
      if (same_dtype && same_shape) found.values.push_back({x, y, {}});
    }
  });
  const auto same_tensor = [&](const Value& x, const Value& y) {
    return name_of_tensor(in_a, x) == name_of_tensor(in_b, y);
  };
  ValueEquality equality({.same_tensor = same_tensor, .budget = in_a.arena->budget().get()});
  merge(a.selection.objects, b.selection.objects, [&](const SelectedObject* x, const SelectedObject* y) {
    if (x == nullptr || y == nullptr || !is_same(equality, in_a, *x, in_b, *y)) found.objects.push_back({x, y});
  });
  return found;
}

struct ValuePass::Impl {
  const ComparedSide a, b;
  Difference& found;
  const Tolerance tolerance;
  const PassOptions options;
  Group& group;
  Progress& progress;
  std::int64_t bytes = 0;
  std::size_t first = 0, last = 0;  ///< This rank's part of `found.values`.

  ValueDifference compare(const TensorPair& pair, const std::stop_token& stop, WorkerShare& share);
  void collect();
};

ValueDifference ValuePass::Impl::compare(const TensorPair& pair, const std::stop_token& stop, WorkerShare& share) {
  BlockReader reader_a(a.catalog(), a.reader, *pair.a, progress, share.a, share.threads);
  BlockReader reader_b(b.catalog(), b.reader, *pair.b, progress, share.b, share.threads);
  Comparer comparer(pair.a->dtype, tolerance);
  const std::int64_t step = std::max(reader_a.block_elements(kBlockBytes), reader_b.block_elements(kBlockBytes));
  for (std::int64_t begin = 0; begin < reader_a.elements() && !stop.stop_requested(); begin += step) {
    const std::int64_t end = std::min(begin + step, reader_a.elements());
    const auto block_a = reader_a.read(begin, end);
    comparer.add(begin, end - begin, block_a, reader_b.read(begin, end));
  }
  return comparer.result();
}

/// Sends each rank's results to all ranks, so that every rank knows whether the two differ.
void ValuePass::Impl::collect() {
  WireWriter own;
  own.number(static_cast<std::int64_t>(first));
  for (std::size_t i = first; i < last; ++i) write(own, found.values[i].values);
  for (const Bytes& piece : all_gather(group, own.take())) {
    WireReader from(piece);
    for (auto i = static_cast<std::size_t>(from.number()); !from.at_end(); ++i) {
      found.values.at(i).values = read_values(from);
    }
  }
}

ValuePass::ValuePass(const ComparedSide& a, const ComparedSide& b, Difference& found, const Tolerance& tolerance,
                     const PassOptions& options, Group& group, Progress& progress)
    : impl_(new Impl{a, b, found, tolerance, options, group, progress}) {
  std::vector<std::int64_t> bytes;
  for (const TensorPair& pair : found.values) {
    bytes.push_back(2 * packed_bytes(element_count(a.catalog().tensors[pair.a->source].shape), pair.a->dtype));
  }
  impl_->bytes = std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0});
  std::tie(impl_->first, impl_->last) = own_share(group, bytes);
}

ValuePass::~ValuePass() = default;

std::int64_t ValuePass::total_bytes() const { return impl_->bytes; }

void ValuePass::read(const std::stop_token& stop) {
  const std::span own = std::span(impl_->found.values).subspan(impl_->first, impl_->last - impl_->first);
  std::vector<std::uint32_t> in_a, in_b;
  for (const TensorPair& pair : own) {
    in_a.push_back(pair.a->source);
    in_b.push_back(pair.b->source);
  }
  impl_->a.reader.locate(in_a);
  impl_->b.reader.locate(in_b);
  const std::vector<std::vector<std::size_t>> groups = reading_groups(impl_->a.catalog(), in_a);
  const int threads = impl_->options.threads;
  const int workers = static_cast<int>(std::clamp(groups.size(), std::size_t{1}, static_cast<std::size_t>(threads)));
  const std::int64_t bytes_a_side = impl_->options.max_memory_bytes / 2 / workers;
  for_each_index(groups.size(), workers, stop, [&]() -> IndexWorker {
    return [&, share = std::make_shared<WorkerShare>(bytes_a_side, threads / workers)](std::size_t group) {
      for (const std::size_t i : groups[group]) own[i].values = impl_->compare(own[i], stop, *share);
    };
  });
}

void ValuePass::finish() {
  if (impl_->group.size() > 1) impl_->collect();
  std::erase_if(impl_->found.values, [](const TensorPair& pair) { return pair.values.differing == 0; });
}

Difference compare_checkpoints(const ComparedSide& a, const ComparedSide& b, const Tolerance& tolerance,
                               const PassOptions& options) {
  Difference found = compare_entries(a, b);
  Progress progress;
  ValuePass pass(a, b, found, tolerance, options, solo_group(), progress);
  pass.read({});
  pass.finish();
  return found;
}

}  // namespace shard
