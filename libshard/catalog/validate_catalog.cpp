#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "libshard/catalog/bounds.h"
#include "libshard/catalog/catalog.h"
#include "libshard/catalog/coverage.h"
#include "libshard/catalog/element_counts.h"
#include "libshard/catalog/name_order.h"
#include "libshard/core/box.h"
#include "libshard/core/budget.h"
#include "libshard/core/checked.h"
#include "libshard/core/error.h"
#include "libshard/core/hash_table.h"
#include "libshard/core/value_walk.h"

namespace shard {

namespace {

// --- Sorting.

/// Compares two paths with one name. "a.b" as one key precedes "a" and "b".
bool path_less(const Path& a, const Path& b) {
  return std::ranges::lexicographical_compare(a, b, [](const PathPart& x, const PathPart& y) {
    if (x.is_index != y.is_index) return x.is_index;
    return x.is_index ? x.index < y.index : x.key() < y.key();
  });
}

/// The order of entries with one name.
template <class Entry>
bool tie_less(const Entry& a, const Entry& b) {
  return a.rank != b.rank ? a.rank < b.rank : path_less(a.path, b.path);
}

/// The positions of `entries` in order of name, rank and path. Nothing if they are in that order already.
template <class Entry>
std::vector<std::uint32_t> sorted_order(const std::vector<Entry>& entries, int threads) {
  const auto less = [](const Entry& a, const Entry& b) {
    const int order = a.name.compare(b.name);
    return order != 0 ? order < 0 : tie_less(a, b);
  };
  if (std::ranges::is_sorted(entries, less)) return {};
  std::vector<std::string_view> names;
  names.reserve(entries.size());
  for (const Entry& entry : entries) names.push_back(entry.name);
  return order_of_names(
      names, [&](std::uint32_t a, std::uint32_t b) { return tie_less(entries[a], entries[b]); }, threads);
}

/// Removes an element without keeping the order of the others.
template <class T>
void take_out(std::vector<T>& all, std::size_t position) {
  all[position] = all.back();
  all.pop_back();
}

/// Moves entry order[i] to position i, in place, by walks along the permutation's cycles. Each step of a walk waits for
/// the memory of the step before it, so several walks take turns. Positions where order[i] == i are finished or the
/// first of a walk, whose entry is kept for the walk that arrives there.
template <class Entry>
void reorder(std::vector<Entry>& entries, std::vector<std::uint32_t> order) {
  constexpr int kWalks = 16;
  struct Walk {
    std::uint32_t to, from;
  };
  struct Kept {
    std::uint32_t position;
    Entry entry;
  };
  std::vector<Walk> walks;
  std::vector<Kept> kept;
  std::uint32_t next = 0;
  const auto begin_walk = [&] {
    while (next < order.size() && order[next] == next) ++next;
    if (next == order.size()) return;
    kept.push_back({next, entries[next]});
    walks.push_back({next, std::exchange(order[next], next)});
  };
  for (int i = 0; i < kWalks; ++i) begin_walk();
  for (std::size_t i = 0; !walks.empty(); i = i + 1 < walks.size() ? i + 1 : 0) {
    Walk& walk = walks[i];
    if (order[walk.from] != walk.from) {
      entries[walk.to] = entries[walk.from];
      walk.to = walk.from;
      walk.from = std::exchange(order[walk.to], walk.to);
      __builtin_prefetch(&order[walk.from]);
      __builtin_prefetch(&entries[walk.from]);
      __builtin_prefetch(reinterpret_cast<const char*>(&entries[walk.from] + 1) - 1);
      continue;
    }
    const auto arrived = std::ranges::find(kept, walk.from, &Kept::position);
    entries[walk.to] = arrived->entry;
    take_out(kept, static_cast<std::size_t>(arrived - kept.begin()));
    take_out(walks, i);
    begin_walk();
  }
}

/// Sets the tensors' new numbers in kTensor values. Visits each node once, regardless of how often it is shared.
class Renumbering {
 public:
  explicit Renumbering(const std::vector<std::uint32_t>& order) : new_index_(order.size()) {
    for (std::uint32_t i = 0; i < order.size(); ++i) new_index_[order[i]] = i;
  }

  void visit(Value* value, int depth = 0) {
    if (value == nullptr || !visited_.insert(value)) return;
    check_depth(depth);
    if (value->kind == ValueKind::kTensor) {
      value->number = new_index_.at(static_cast<std::size_t>(value->number));
      return;
    }
    for_each_child(*value, [&](Value& child) { visit(&child, depth + 1); });
  }

 private:
  std::vector<std::uint32_t> new_index_;
  VisitedSet visited_;
};

void sort_entries(Catalog& catalog, int threads) {
  const std::vector<std::uint32_t> objects = sorted_order(catalog.objects, threads);
  if (!objects.empty()) reorder(catalog.objects, objects);
  const std::vector<std::uint32_t> tensors = sorted_order(catalog.tensors, threads);
  if (tensors.empty()) return;
  reorder(catalog.tensors, tensors);
  Renumbering renumbering(tensors);
  renumbering.visit(catalog.root);
  for (const Object& object : catalog.objects) renumbering.visit(object.value);
}

// --- Aliases.

/// Finds equal views. A storage with only one tensor needs no comparison.
class AliasFinder {
 public:
  explicit AliasFinder(Catalog& catalog) : catalog_(catalog), uses_(catalog.storages.size()) {
    for (const StoredTensor& stored : catalog.stored) is_any_shared_ |= ++uses_[stored.storage] > 1;
  }

  void run() {
    if (!is_any_shared_) return;
    for (std::uint32_t i = 0; i < catalog_.tensors.size(); ++i) {
      if (is_candidate(catalog_.tensors[i])) catalog_.tensors[i].alias_of = find_or_insert(i);
    }
  }

 private:
  std::uint32_t storage(const Chunk& chunk) const { return catalog_.stored[chunk.stored].storage; }
  bool is_candidate(const Tensor& tensor) const {
    return !tensor.damaged && tensor.chunk_count > 0 && uses_[storage(catalog_.chunks[tensor.first_chunk])] > 1;
  }

  /// A hash of everything that same_view compares.
  std::uint64_t hash(const Tensor& tensor) {
    numbers_.assign({static_cast<std::int64_t>(tensor.dtype)});
    const auto add = [this](Dims dims) { numbers_.insert(numbers_.end(), dims.begin(), dims.end()); };
    add(tensor.shape);
    for (const Chunk& chunk : catalog_.chunks_of(tensor)) {
      numbers_.insert(numbers_.end(), {storage(chunk), chunk.first});
      add(chunk.strides);
      add(chunk.sizes);
      add(chunk.offsets);
    }
    return hash_(numbers_);
  }

  /// Tensors in several pieces are equal views if all their pieces are.
  bool same_view(const Tensor& a, const Tensor& b) const {
    const auto same_chunk = [this](const Chunk& x, const Chunk& y) {
      return storage(x) == storage(y) && x.first == y.first && x.strides == y.strides && x.sizes == y.sizes &&
             x.offsets == y.offsets;
    };
    return a.dtype == b.dtype && a.shape == b.shape &&
           std::ranges::equal(catalog_.chunks_of(a), catalog_.chunks_of(b), same_chunk);
  }

  /// The earlier tensor with the same view. If there is none, records this one as the first and returns kNoIndex.
  std::uint32_t find_or_insert(std::uint32_t index) {
    const Tensor& tensor = catalog_.tensors[index];
    const auto is_same = [&](std::uint32_t view) { return same_view(catalog_.tensors[first_[view]], tensor); };
    const std::uint32_t view = views_.find_or_add(hash(tensor), is_same);
    if (view < first_.size()) return first_[view];
    first_.push_back(index);
    return kNoIndex;
  }

  Catalog& catalog_;
  std::vector<std::uint32_t> uses_;
  bool is_any_shared_ = false;
  KeyedHash hash_;
  HashSlots views_;
  std::vector<std::uint32_t> first_;   ///< The first tensor of each view.
  std::vector<std::int64_t> numbers_;  ///< The numbers of one tensor, while it is hashed.
};

// --- Checks.

[[noreturn]] void refuse_box(const Tensor& tensor, const Chunk& chunk, FindingKind kind, const char* why) {
  throw Error(ErrorCode::kCorruption,
              fmt::format("tensor '{}': cannot place the chunk of {} at {} in a tensor of {}", tensor.name,
                          to_string(chunk.sizes), to_string(chunk.offsets), to_string(tensor.shape)))
      .of_tensor(tensor.name)
      .of_kind(kind)
      .because(why);
}

void check_box(const Tensor& tensor, const Chunk& chunk) {
  const int dims = tensor.shape.size();
  if (chunk.offsets.size() != dims || chunk.sizes.size() != dims || chunk.strides.size() != dims) {
    refuse_box(tensor, chunk, FindingKind::kShapeMismatch, "chunk and tensor differ in their number of dimensions");
  }
  bool empty = false, inside = true;
  for (int d = 0; d < dims; ++d) {
    if (chunk.offsets[d] < 0 || chunk.sizes[d] < 0) {
      refuse_box(tensor, chunk, FindingKind::kOutOfBounds, "sizes and offsets must not be negative");
    }
    empty = empty || chunk.sizes[d] == 0;
    inside = inside && chunk.sizes[d] <= tensor.shape[d] && chunk.offsets[d] <= tensor.shape[d] - chunk.sizes[d];
  }
  if (!inside && !empty)
    refuse_box(tensor, chunk, FindingKind::kOutOfBounds, "the chunk extends past the end of the tensor");
}

bool is_whole(const Tensor& tensor, const Chunk& chunk) {
  return chunk.sizes == tensor.shape && std::ranges::all_of(chunk.offsets, [](std::int64_t n) { return n == 0; });
}

/// Checks everything about a tensor except its coverage. \throws Error kCorruption
void check_bounds(const Catalog& catalog, const Tensor& tensor) {
  if (tensor.shape.size() > kMaxDims) {
    throw Error(ErrorCode::kCorruption, fmt::format("tensor '{}' has {} dimensions", tensor.name, tensor.shape.size()))
        .of_tensor(tensor.name)
        .of_kind(FindingKind::kBadHeader)
        .because(fmt::format("at most {} dimensions are supported", kMaxDims));
  }
  try {
    checked_bytes(checked_numel(tensor.shape), tensor.dtype);
  } catch (Error& error) {
    throw error.of_tensor(tensor.name).of_kind(FindingKind::kBadHeader);
  }
  for (const Chunk& chunk : catalog.chunks_of(tensor)) {
    check_box(tensor, chunk);
    check_view(tensor.name, chunk.sizes, chunk.strides, chunk.first, tensor.dtype, catalog.storage_of(chunk));
  }
}

/// Checks one tensor. \returns whether nothing was reported.
bool check_tensor(const Catalog& catalog, const Tensor& tensor, Findings& findings) {
  try {
    check_bounds(catalog, tensor);
  } catch (const Error& error) {
    findings.report(error);
    return false;
  }
  const std::span<const Chunk> chunks = catalog.chunks_of(tensor);
  if (chunks.size() == 1 && is_whole(tensor, chunks[0])) return true;
  return check_coverage(tensor.name, tensor.shape, chunks, findings);
}

/// Limits the claimed sizes. Views may use an element many times (a stride of 0, many names for one storage), and zeros
/// compress to nothing. A file of a few bytes that claims terabytes in this way would exhaust its readers' time. The
/// files' sizes are known before any offset is, and count each stored byte once, regardless of the claims of storages
/// and items.
class Proportion {
 public:
  explicit Proportion(Catalog& catalog) : catalog_(catalog) {
    for (const Tensor& tensor : catalog.tensors) claimed_ += tensor.damaged ? 0 : bytes_of(tensor);
    HashSet<std::pair<std::uint64_t, std::uint64_t>> met;
    for (const File& file : catalog.files) {
      if (!file.identity.is_known() || met.insert(std::pair(file.identity.device, file.identity.inode)))
        stored_ += static_cast<double>(file.bytes);
    }
  }

  /// Reports the largest tensors, which become `damaged`, until the rest is in proportion to the files. No reader
  /// processes more than that.
  void check(Findings& findings) {
    constexpr auto always = static_cast<double>(kNamedFloor), times = static_cast<double>(kNamedPerFileByte);
    const double limit = std::max(always, times * stored_);
    if (claimed_ <= limit) return;
    double left = claimed_;
    for (Tensor* const tensor : largest_first()) {
      if (left <= limit) return;
      left -= bytes_of(*tensor);
      tensor->damaged = true;
      findings.report(finding(*tensor));
    }
  }

 private:
  // A double, because sums may exceed 63 bits and need not be exact.
  static double bytes_of(const Tensor& tensor) {
    return static_cast<double>(packed_bytes(element_count(tensor.shape), tensor.dtype));
  }

  std::vector<Tensor*> largest_first() {
    std::vector<Tensor*> tensors;
    for (Tensor& tensor : catalog_.tensors) {
      if (!tensor.damaged) tensors.push_back(&tensor);
    }
    std::ranges::stable_sort(tensors, std::greater(), [](const Tensor* tensor) { return bytes_of(*tensor); });
    return tensors;
  }

  Error finding(const Tensor& tensor) const {
    Error error(ErrorCode::kCorruption,
                fmt::format("tensors claim {:.0f} bytes, but the files have only {:.0f}", claimed_, stored_));
    if (tensor.chunk_count > 0) {
      const Storage& storage = catalog_.storage_of(catalog_.chunks_of(tensor).front());
      error.in_file(catalog_.files[storage.file].path);
    }
    return error.of_tensor(tensor.name)
        .because(fmt::format("beyond 1 GiB no checkpoint claims more than {} times the bytes of its files; a file that "
                             "was built to keep its readers busy may",
                             kNamedPerFileByte))
        .of_kind(FindingKind::kOutOfBounds);
  }

  Catalog& catalog_;
  double claimed_ = 0, stored_ = 0;
};

}  // namespace

void validate_catalog(Catalog& catalog, Findings& findings, int threads) {
  sort_entries(catalog, threads);
  for (Tensor& tensor : catalog.tensors) {
    const std::span<Chunk> chunks = std::span(catalog.chunks).subspan(tensor.first_chunk, tensor.chunk_count);
    if (chunks.size() > 1) catalog.sort_chunks(chunks);
    tensor.damaged = tensor.damaged || !check_tensor(catalog, tensor, findings);
  }
  Proportion(catalog).check(findings);
  AliasFinder(catalog).run();
}

}  // namespace shard
