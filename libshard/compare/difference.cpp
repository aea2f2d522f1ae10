#include "libshard/compare/difference.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <compare>
#include <cstring>
#include <memory>
#include <numeric>
#include <span>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "libshard/catalog/element_counts.h"
#include "libshard/catalog/originals.h"
#include "libshard/core/parallel.h"
#include "libshard/core/parse_number.h"
#include "libshard/core/value_equality.h"
#include "libshard/exec/buffer_pool.h"
#include "libshard/exec/cast.h"
#include "libshard/exec/reading_groups.h"
#include "libshard/ranks/wire.h"

namespace shard {

namespace {

constexpr std::int64_t kStep = 4096;  ///< Elements compared together; a multiple of 8.

std::uint64_t load(const std::byte* from, int bytes) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, from, static_cast<std::size_t>(bytes));
  return bits;
}

template <class Word>
bool any_above(std::span<const std::byte> data, Word mask, Word infinity) {
  bool found = false;
  for (std::size_t i = 0; i + sizeof(Word) <= data.size(); i += sizeof(Word)) {
    Word word;
    std::memcpy(&word, data.data() + i, sizeof word);
    found |= static_cast<Word>(word & mask) > infinity;
  }
  return found;
}

/// Whether an element may be NaN. True for the narrow float8 types, which differ too much for one bit trick.
bool may_hold_nan(DType part, std::span<const std::byte> data) {
  switch (part) {
    case DType::kFloat16:
      return any_above<std::uint16_t>(data, 0x7FFF, 0x7C00);
    case DType::kBfloat16:
      return any_above<std::uint16_t>(data, 0x7FFF, 0x7F80);
    case DType::kFloat32:
      return any_above<std::uint32_t>(data, 0x7FFFFFFFU, 0x7F800000U);
    case DType::kFloat64:
      return any_above<std::uint64_t>(data, 0x7FFFFFFFFFFFFFFFU, 0x7FF0000000000000U);
    default:
      return true;
  }
}

void to_doubles(DType part, std::span<const std::byte> data, std::vector<double>& out) {
  out.resize(data.size() / static_cast<std::size_t>(element_bytes(part)));
  const auto bytes = std::as_writable_bytes(std::span(out));
  if (part == DType::kFloat64) {
    if (!data.empty()) std::memcpy(bytes.data(), data.data(), data.size());
  } else {
    cast(part, data, DType::kFloat64, bytes);
  }
}

double relative(double distance, double b) {
  return b == 0 ? std::numeric_limits<double>::infinity() : distance / std::abs(b);
}

constexpr int kLowestDecade = -324, kDecades = 633;  ///< The range from the smallest positive double to the largest.

/// The exponent e with 10^e <= x < 10^(e + 1), found by comparison with the doubles nearest to these powers. \pre x is
/// finite and > 0
int decade_of(double x) {
  static const std::array<double, kDecades> kPowers = [] {
    std::array<double, kDecades> powers{};
    for (int i = 0; i < kDecades; ++i)
      powers[static_cast<std::size_t>(i)] = parse_number<double>(fmt::format("1e{}", i + kLowestDecade)).value_or(0);
    return powers;
  }();
  constexpr double kLog2 = 0.30102999566398120;
  const int low = std::max(kLowestDecade, static_cast<int>(std::floor(std::ilogb(x) * kLog2)));
  const auto next = static_cast<std::size_t>(low + 1 - kLowestDecade);
  return next < kPowers.size() && x >= kPowers[next] ? low + 1 : low;
}

void count(std::vector<std::int64_t>& counts, std::size_t size, int bin) {
  counts.resize(size);
  ++counts[static_cast<std::size_t>(bin)];
}

Histogram histogram_of(const std::vector<std::int64_t>& counts, int lowest) {
  Histogram bins;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] > 0) bins.push_back({static_cast<int>(i) + lowest, counts[i]});
  }
  return bins;
}

/// The larger one; NaN wins, as in numpy's max.
double larger(double a, double b) { return std::isnan(a) || a > b ? a : b; }

}  // namespace

Comparer::Comparer(DType dtype, const Tolerance& tolerance)
    : dtype_(dtype), part_(component_of(dtype)), parts_(part_ == dtype ? 1 : 2), tolerance_(tolerance) {
  const bool is_number = is_float(part_) && dtype_block(part_).elements == 1 && can_cast(part_, DType::kFloat64);
  kind_ = is_number ? Kind::kFloat : is_integer(dtype) || dtype == DType::kBool ? Kind::kInteger : Kind::kBits;
}

void Comparer::add(std::int64_t begin, std::int64_t count, std::span<const std::byte> a, std::span<const std::byte> b) {
  result_.elements += count;
  for (std::int64_t done = 0; done < count; done += kStep) {
    const std::int64_t step = std::min(kStep, count - done);
    const auto from = static_cast<std::size_t>(packed_bytes(done, dtype_));
    const auto bytes = static_cast<std::size_t>(packed_bytes(step, dtype_));
    const auto part_a = a.subspan(from, bytes), part_b = b.subspan(from, bytes);
    const bool same = std::memcmp(part_a.data(), part_b.data(), bytes) == 0;
    if (same && (kind_ != Kind::kFloat || tolerance_.equal_nan || !may_hold_nan(part_, part_a))) continue;
    if (kind_ == Kind::kFloat) {
      add_floats(begin + done, part_a, part_b);
    } else if (kind_ == Kind::kInteger) {
      add_integers(begin + done, part_a, part_b);
    } else {
      add_bits(begin + done, step, part_a, part_b);
    }
  }
}

void Comparer::add_floats(std::int64_t begin, std::span<const std::byte> a, std::span<const std::byte> b) {
  to_doubles(part_, a, a_);
  to_doubles(part_, b, b_);
  const auto parts = static_cast<std::size_t>(parts_);
  const auto part_bytes = static_cast<std::size_t>(element_bytes(part_));
  for (std::size_t i = 0; i < a_.size(); i += parts) {
    const double a0 = a_[i], b0 = b_[i];
    const double a1 = parts == 2 ? a_[i + 1] : 0, b1 = parts == 2 ? b_[i + 1] : 0;
    if (a0 == b0 && a1 == b1) continue;
    const bool nan_a = std::isnan(a0) || std::isnan(a1), nan_b = std::isnan(b0) || std::isnan(b1);
    if (nan_a && nan_b && tolerance_.equal_nan) continue;
    const double distance = parts == 2 ? std::hypot(a0 - b0, a1 - b1) : std::abs(a0 - b0);
    const double size_b = parts == 2 ? std::hypot(b0, b1) : std::abs(b0);
    const bool near =
        std::isfinite(distance) && std::isfinite(size_b) && distance <= tolerance_.atol + tolerance_.rtol * size_b;
    if (near) continue;
    std::uint64_t ulps = 0;
    for (std::size_t p = 0; p < parts && !nan_a && !nan_b; ++p) {
      ulps = std::max(ulps, ulps_apart(a.data() + (i + p) * part_bytes, b.data() + (i + p) * part_bytes));
    }
    if (!nan_a && !nan_b && ulps <= static_cast<std::uint64_t>(tolerance_.ulp)) continue;
    differs_by(begin + static_cast<std::int64_t>(i / parts), distance, relative(distance, size_b));
    if (nan_a || nan_b) continue;
    result_.max_ulp = std::max(result_.max_ulp.value_or(0), ulps);
    if (ulps > 0) count(ulp_counts_, 64, static_cast<int>(std::bit_width(ulps)) - 1);
  }
}

void Comparer::add_integers(std::int64_t begin, std::span<const std::byte> a, std::span<const std::byte> b) {
  const int bytes = element_bytes(dtype_);
  const auto width = static_cast<std::size_t>(bytes);
  const std::uint64_t sign = is_signed(dtype_) ? std::uint64_t{1} << (8 * bytes - 1) : 0;
  for (std::size_t i = 0; i * width < a.size(); ++i) {
    // With the sign bit flipped, two's complement numbers sort like unsigned ones.
    const std::uint64_t x = load(a.data() + i * width, bytes) ^ sign, y = load(b.data() + i * width, bytes) ^ sign;
    if (x == y) continue;
    const double distance = static_cast<double>(std::max(x, y) - std::min(x, y));
    const double size_b = static_cast<double>(y >= sign ? y - sign : sign - y);
    const bool tolerated =
        (tolerance_.atol > 0 || tolerance_.rtol > 0) && distance <= tolerance_.atol + tolerance_.rtol * size_b;
    if (!tolerated) differs_by(begin + static_cast<std::int64_t>(i), distance, relative(distance, size_b));
  }
}

/// Compares dtypes without arithmetic bit by bit; elements may share bytes.
void Comparer::add_bits(std::int64_t begin, std::int64_t count, std::span<const std::byte> a,
                        std::span<const std::byte> b) {
  const DTypeBlock block = dtype_block(dtype_);
  const auto bits = static_cast<std::size_t>(block.bytes * 8 / block.elements);
  for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
    bool same = true;
    if (bits % 8 == 0) {
      same = std::memcmp(a.data() + i * bits / 8, b.data() + i * bits / 8, bits / 8) == 0;
    } else {
      for (std::size_t bit = i * bits; bit < (i + 1) * bits; ++bit) {
        const auto shift = static_cast<int>(bit % 8);
        same = same && ((a[bit / 8] ^ b[bit / 8]) >> shift & std::byte{1}) == std::byte{0};
      }
    }
    if (!same) differs(begin + static_cast<std::int64_t>(i));
  }
}

ValueDifference Comparer::result() const {
  ValueDifference result = result_;
  result.abs = histogram_of(abs_counts_, kLowestDecade);
  result.ulp = histogram_of(ulp_counts_, 0);
  return result;
}

void Comparer::differs(std::int64_t element) {
  if (result_.differing++ == 0) result_.first = element;
}

void Comparer::differs_by(std::int64_t element, double abs, double rel) {
  differs(element);
  result_.max_abs = result_.max_abs ? larger(*result_.max_abs, abs) : abs;
  result_.max_rel = result_.max_rel ? larger(*result_.max_rel, rel) : rel;
  if (std::isnan(abs)) result_.max_abs = result_.max_rel = abs;
  if (abs > 0 && std::isfinite(abs)) count(abs_counts_, kDecades, decade_of(abs) - kLowestDecade);
}

/// Floats are ordered like sign and magnitude integers. Between different signs, the distance passes through zero.
std::uint64_t Comparer::ulps_apart(const std::byte* a, const std::byte* b) const {
  const int bits = 8 * element_bytes(part_);
  const std::uint64_t x = load(a, bits / 8), y = load(b, bits / 8);
  const std::uint64_t sign = part_ == DType::kFloat8E8m0fnu ? 0 : std::uint64_t{1} << (bits - 1);
  const std::uint64_t size_x = x & ~sign, size_y = y & ~sign;
  if ((x & sign) != (y & sign)) return size_x + size_y;
  return size_x > size_y ? size_x - size_y : size_y - size_x;
}

namespace {

std::strong_ordering order_of(const PathPart& a, const PathPart& b) {
  if (a.is_index != b.is_index) return a.is_index <=> b.is_index;
  return a.is_index ? a.index <=> b.index : a.key() <=> b.key();
}

std::strong_ordering order_of(const Path& a, const Path& b) {
  for (std::size_t i = 0; i < a.size() && i < b.size(); ++i) {
    if (const std::strong_ordering order = order_of(a[i], b[i]); order != 0) return order;
  }
  return a.size() <=> b.size();
}

/// Visits the entries of one name. A checkpoint has several if ranks differ, or if paths have the same text. Those with
/// equal ranks and paths are pairs, then the others in their order.
template <class Entry, class Entries, class Visit>
void pair_up(std::span<const Entry> a, const Entries& entries_a, std::span<const Entry> b, const Entries& entries_b,
             const Visit& visit) {
  if (a.size() == 1 && b.size() == 1) return visit(&a[0], &b[0]);
  using Place = std::pair<std::int32_t, const Entry*>;
  const auto order = [](const Place& x, const Place& y) {
    return x.first == y.first ? order_of(x.second->path, y.second->path) : x.first <=> y.first;
  };
  const auto sorted = [&](std::span<const Entry> selected, const Entries& entries) {
    std::vector<Place> places;
    for (const Entry& each : selected) places.emplace_back(entries[each.source].rank, &each);
    std::ranges::stable_sort(places, [&](const Place& x, const Place& y) { return order(x, y) < 0; });
    return places;
  };
  const std::vector<Place> in_a = sorted(a, entries_a), in_b = sorted(b, entries_b);
  std::vector<const Entry*> rest_a, rest_b;
  for (std::size_t i = 0, j = 0; i < in_a.size() || j < in_b.size();) {
    const std::strong_ordering next = i == in_a.size()   ? std::strong_ordering::greater
                                      : j == in_b.size() ? std::strong_ordering::less
                                                         : order(in_a[i], in_b[j]);
    if (next == 0) visit(in_a[i].second, in_b[j].second);
    if (next < 0) rest_a.push_back(in_a[i].second);
    if (next > 0) rest_b.push_back(in_b[j].second);
    i += next <= 0;
    j += next >= 0;
  }
  for (std::size_t i = 0; i < std::max(rest_a.size(), rest_b.size()); ++i)
    visit(i < rest_a.size() ? rest_a[i] : nullptr, i < rest_b.size() ? rest_b[i] : nullptr);
}

/// Walks two lists that are sorted by name in step. Visits each entry once, alone or with its counterpart. `entries`
/// are those of the catalogs.
template <class Entry, class Entries, class Visit>
void merge(const std::vector<Entry>& a, const Entries& entries_a, const std::vector<Entry>& b, const Entries& entries_b,
           const Visit& visit) {
  const auto run_of = [](const std::vector<Entry>& list, std::size_t begin) {
    std::size_t end = begin + 1;
    while (end < list.size() && list[end].name == list[begin].name) ++end;
    return std::span(list).subspan(begin, end - begin);
  };
  std::size_t i = 0, j = 0;
  while (i < a.size() || j < b.size()) {
    const int order = i == a.size() ? 1 : j == b.size() ? -1 : a[i].name.compare(b[j].name);
    if (order == 0) {
      const std::span<const Entry> run_a = run_of(a, i), run_b = run_of(b, j);
      pair_up(run_a, entries_a, run_b, entries_b, visit);
      i += run_a.size(), j += run_b.size();
    } else {
      visit(order < 0 ? &a[i] : nullptr, order > 0 ? &b[j] : nullptr);
      order < 0 ? ++i : ++j;
    }
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

template <class Wire>
void pass(Wire& wire, Passed<Wire, ValueDifference>& values) {
  wire.pass(values.elements, values.differing, values.first, values.max_abs, values.max_rel, values.max_ulp);
  for (auto* const histogram : {&values.abs, &values.ulp}) {
    wire.list(*histogram, [&](auto& bin) { wire.pass(bin.exponent, bin.count); });
  }
}

}  // namespace

/// Two objects with equal values may be stored with different datatypes. Only formats with stored forms record them.
bool differ_in_form(const Catalog& a, const Catalog& b, const Value* in_a, const Value* in_b) {
  if (a.originals == nullptr || b.originals == nullptr || a.originals->format != b.originals->format) return false;
  const StoredObject *stored_a = a.originals->stored_as(in_a), *stored_b = b.originals->stored_as(in_b);
  return stored_a != nullptr && stored_b != nullptr && stored_a->form != stored_b->form;
}

Difference compare_entries(const ComparedSide& a, const ComparedSide& b) {
  const Catalog &in_a = a.catalog(), &in_b = b.catalog();
  Difference found;
  merge(a.selection.tensors, in_a.tensors, b.selection.tensors, in_b.tensors,
        [&](const SelectedTensor* x, const SelectedTensor* y) {
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
  ValueEquality equality({.same_tensor = same_tensor, .persistent_by_id = false, .budget = in_a.arena->budget().get()});
  merge(a.selection.objects, in_a.objects, b.selection.objects, in_b.objects,
        [&](const SelectedObject* x, const SelectedObject* y) {
          if (x == nullptr || y == nullptr || !is_same(equality, in_a, *x, in_b, *y)) found.objects.push_back({x, y});
        });
  return found;
}

/// Resources of one worker. If workers shared pools, two could each hold a buffer that the other waits for.
struct ValuePass::WorkerShare {
  WorkerShare(std::int64_t bytes_a_side, int own_threads) : a(bytes_a_side), b(bytes_a_side), threads(own_threads) {}
  BufferPool a, b;
  const int threads;
};

ValueDifference ValuePass::compare(const TensorPair& pair, const std::stop_token& stop, WorkerShare& share) {
  BlockReader reader_a(a_.catalog(), a_.reader, *pair.a, progress_, share.a, share.threads);
  BlockReader reader_b(b_.catalog(), b_.reader, *pair.b, progress_, share.b, share.threads);
  Comparer comparer(pair.a->dtype, tolerance_);
  const std::int64_t step = std::max(reader_a.block_elements(kBlockBytes), reader_b.block_elements(kBlockBytes));
  for (std::int64_t begin = 0; begin < reader_a.elements() && !stop.stop_requested(); begin += step) {
    const std::int64_t end = std::min(begin + step, reader_a.elements());
    const auto block_a = reader_a.read(begin, end);
    comparer.add(begin, end - begin, block_a, reader_b.read(begin, end));
  }
  return comparer.result();
}

/// Sends each rank's results to all ranks, so that every rank knows whether the two differ.
void ValuePass::collect() {
  WireWriter own;
  own.number(static_cast<std::int64_t>(first_));
  for (std::size_t i = first_; i < last_; ++i) pass(own, found_.values[i].values);
  for (const Bytes& piece : all_gather(group_, own.take())) {
    WireReader from(piece);
    for (auto i = static_cast<std::size_t>(from.number()); !from.at_end(); ++i) {
      found_.values.at(i).values = {};
      pass(from, found_.values[i].values);
    }
  }
}

ValuePass::ValuePass(const ComparedSide& a, const ComparedSide& b, Difference& found, const Tolerance& tolerance,
                     const PassOptions& options, Group& group, Progress& progress)
    : a_(a), b_(b), found_(found), tolerance_(tolerance), options_(options), group_(group), progress_(progress) {
  std::vector<std::int64_t> bytes;
  for (const TensorPair& pair : found.values) {
    bytes.push_back(2 * packed_bytes(element_count(a.catalog().tensors[pair.a->source].shape), pair.a->dtype));
  }
  bytes_ = std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0});
  std::tie(first_, last_) = own_share(group, bytes);
}

void ValuePass::read(const std::stop_token& stop) {
  const std::span own = std::span(found_.values).subspan(first_, last_ - first_);
  std::vector<std::uint32_t> in_a, in_b;
  for (const TensorPair& pair : own) {
    in_a.push_back(pair.a->source);
    in_b.push_back(pair.b->source);
  }
  a_.reader.locate(in_a);
  b_.reader.locate(in_b);
  const std::vector<std::vector<std::size_t>> groups = reading_groups(a_.catalog(), in_a);
  const int threads = options_.threads;
  const int workers = static_cast<int>(std::clamp(groups.size(), std::size_t{1}, static_cast<std::size_t>(threads)));
  const std::int64_t bytes_a_side = options_.max_memory_bytes / 2 / workers;
  for_each_index(groups.size(), workers, stop, [&]() -> IndexWorker {
    return [&, share = std::make_shared<WorkerShare>(bytes_a_side, threads / workers)](std::size_t group) {
      for (const std::size_t i : groups[group]) own[i].values = compare(own[i], stop, *share);
    };
  });
}

/// Equal tensors are removed from the list of differences.
void ValuePass::finish() {
  if (group_.size() > 1) collect();
  std::erase_if(found_.values, [](const TensorPair& pair) { return pair.values.differing == 0; });
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
