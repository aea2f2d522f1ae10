#include "libshard/core/value_equality.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "libshard/core/numpy_values.h"

namespace shard {

/// Compares two values with the algorithm of Hopcroft and Karp for the equivalence of automata. Invariant: if all pairs
/// in `todo_` are equal, so are the members of each class. A pair in one class needs no comparison, and every other
/// pair merges two classes, so there are fewer comparisons than nodes.
class ValueEquality::Comparison {
 public:
  explicit Comparison(ValueEquality& equality) : options_(equality.options_), known_(equality) {}

  bool run(const Value& a, const Value& b) {
    push(&a, &b);
    while (!todo_.empty() && is_same_) {
      const auto [left, right] = todo_.back();
      todo_.pop_back();
      charge(*left, *right);
      compare(*left, *right);
    }
    return is_same_;
  }

 private:
  static constexpr std::int64_t kTextBytesOfVisit = 256;  ///< Comparing this much text costs about as much as a value.

  void charge(const Value& a, const Value& b) {
    charge_text(a.text().size() == b.text().size() ? std::ssize(a.text()) : 0);
  }

  void charge_text(std::int64_t bytes) {
    if (options_.budget != nullptr) options_.budget->charge(Charge::kVisits, 1 + bytes / kTextBytesOfVisit);
  }

  const Value* class_of(const Value* value) {
    const Value** above = known_.classes_.find(value);
    if (above == nullptr) return value;
    while (const Value** next = known_.classes_.find(*above)) {
      *above = *next;  // Shortens the path for the next search.
      above = next;
    }
    return *above;
  }

  /// \returns false if the two are already known to be equal.
  bool join(const Value* a, const Value* b) {
    if (a == b) return known_.selves_.insert(a);
    const Value *left = class_of(a), *right = class_of(b);
    if (left == right) return false;
    known_.classes_.try_emplace(left, right);
    return true;
  }

  void push(const Value* a, const Value* b) {
    if (a == nullptr || b == nullptr) {
      is_same_ = is_same_ && a == b;
    } else if (a != b || !options_.opaque_by_class || !options_.persistent_by_id || options_.same_tensor) {
      if (join(a, b)) todo_.emplace_back(a, b);
    }
  }

  void push(std::span<Value* const> a, std::span<Value* const> b) {
    is_same_ = is_same_ && a.size() == b.size();
    for (std::size_t i = 0; i < a.size() && is_same_; ++i) push(a[i], b[i]);
  }

  /// Sets have no order, and Python stores strings in a different one in each process. Pairs elements by their hashes.
  void push_sets(std::span<Value* const> a, std::span<Value* const> b) {
    is_same_ = is_same_ && a.size() == b.size();
    if (is_same_) push(by_hash(a), by_hash(b));
  }

  std::vector<Value*> by_hash(std::span<Value* const> elements) {
    std::vector<std::pair<std::uint64_t, Value*>> hashed;
    hashed.reserve(elements.size());
    for (Value* const element : elements) hashed.emplace_back(hash_of(*element, 0), element);
    std::ranges::stable_sort(hashed, {}, &std::pair<std::uint64_t, Value*>::first);
    std::vector<Value*> sorted(hashed.size());
    std::ranges::transform(hashed, sorted.begin(), &std::pair<std::uint64_t, Value*>::second);
    return sorted;
  }

  /// Equal for equal values, whichever numbers the tensors in them have. Each value is hashed once.
  std::uint64_t hash_of(const Value& value, int depth) {
    if (depth == kMaxValueDepth) return 0;
    if (const std::uint64_t* known = known_.hashes_.find(&value)) return *known;
    known_.hashes_.try_emplace(&value, 0);  // A value that contains itself finds this one.
    charge_text(std::ssize(value.text()));
    std::uint64_t hash = static_cast<std::uint64_t>(value.kind);
    if (has_number(value) && value.kind != ValueKind::kTensor)
      hash = joined(hash, static_cast<std::uint64_t>(value.number));
    hash = joined(hash, std::hash<std::string_view>()(value.text()));
    std::uint64_t of_elements = 0;
    for (const Value* element : value.items()) {
      const std::uint64_t own = hash_of(*element, depth + 1);
      of_elements = is_set(value) ? of_elements + own : joined(of_elements, own);
    }
    return *known_.hashes_.find(&value) = joined(hash, of_elements);
  }

  static std::uint64_t joined(std::uint64_t a, std::uint64_t b) { return (a ^ b) * 0x9E3779B97F4A7C15 + (b >> 32); }

  static bool is_set(const Value& value) {
    return value.kind == ValueKind::kSet || value.kind == ValueKind::kFrozenSet;
  }

  static bool has_number(const Value& value) {
    return !value.has_text() && !value.has_elements() && value.kind != ValueKind::kCall;
  }

  /// `number` contains the bits of a float too: NaNs with equal payloads are equal, 0.0 and -0.0 are not.
  static bool has_same_number(const Value& a, const Value& b) { return !has_number(a) || a.number == b.number; }

  /// Whether two arrays or scalars of numpy have the same dtype, shape and elements. Versions of numpy name their
  /// modules differently, and pickles contain elements in the order and byte order of the memory. Nothing for other
  /// values.
  std::optional<bool> is_same_numpy(const Value& a, const Value& b) {
    if (a.kind != ValueKind::kCall || b.kind != ValueKind::kCall) return std::nullopt;
    const std::optional<NumpyValue> left = as_numpy(a), right = as_numpy(b);
    if (!left || !right) return std::nullopt;
    const std::optional<std::string> elements = numpy_elements(*left), others = numpy_elements(*right);
    if (!elements || !others) return std::nullopt;
    charge_text(std::ssize(*elements));
    return left->kind == right->kind && left->code == right->code && left->shape == right->shape && elements == others;
  }

  void compare(const Value& a, const Value& b) {
    if (const std::optional<bool> is_same = is_same_numpy(a, b)) {
      is_same_ = *is_same;
      return;
    }
    if (a.kind == ValueKind::kTensor && b.kind == ValueKind::kTensor && options_.same_tensor) {
      is_same_ = options_.same_tensor(a, b);
      return;
    }
    is_same_ = a.kind == b.kind && has_same_number(a, b) && a.text() == b.text() && a.module() == b.module() &&
               a.is_new == b.is_new && (a.kind != ValueKind::kOpaque || options_.opaque_by_class) &&
               (a.kind != ValueKind::kPersid || options_.persistent_by_id);
    is_set(a) ? push_sets(a.items(), b.items()) : push(a.items(), b.items());
    push(a.callee(), b.callee());
    push(a.state(), b.state());
    const CallExtra none;
    const CallExtra &left = a.extra() != nullptr ? *a.extra() : none, &right = b.extra() != nullptr ? *b.extra() : none;
    push(left.list_items, right.list_items);
    push(left.dict_items, right.dict_items);
    push(left.kwargs, right.kwargs);
  }

  const Options& options_;
  ValueEquality& known_;
  std::vector<std::pair<const Value*, const Value*>> todo_;
  bool is_same_ = true;
};

bool ValueEquality::is_equal(const Value& a, const Value& b) {
  if (Comparison(*this).run(a, b)) return true;
  classes_.clear();  // Some classes are valid only if the two values are equal, which they are not.
  selves_ = {};
  return false;
}

}  // namespace shard
