#include "formats/parts/pickle/equal.h"

#include <span>
#include <utility>
#include <vector>

#include "libshard/core/hash_table.h"
#include "libshard/core/visited.h"

namespace shard::pickle {

namespace {

using Pair = std::pair<const Value*, const Value*>;

/// Walks two values side by side. A pair that is met again needs no second look: the first finds what differs below it.
class Comparison {
 public:
  Comparison(const Equality::Options& options, std::int64_t& visits) : options_(options), visits_(visits) {}

  bool run(const Value& a, const Value& b) {
    push(&a, &b);
    while (!todo_.empty() && is_same_) {
      const auto [left, right] = todo_.back();
      todo_.pop_back();
      check_walk(0, ++visits_);
      compare(*left, *right);
    }
    return is_same_;
  }

 private:
  void push(const Value* a, const Value* b) {
    if (a == nullptr || b == nullptr) {
      is_same_ = is_same_ && a == b;
    } else if (a != b || !options_.opaque_by_class || options_.same_tensor) {
      if (met_.insert(Pair(a, b))) todo_.emplace_back(a, b);
    }
  }

  void push(std::span<Value* const> a, std::span<Value* const> b) {
    is_same_ = is_same_ && a.size() == b.size();
    for (std::size_t i = 0; i < a.size() && is_same_; ++i) push(a[i], b[i]);
  }

  void compare(const Value& a, const Value& b) {
    if (a.kind == ValueKind::kTensor && b.kind == ValueKind::kTensor && options_.same_tensor) {
      is_same_ = options_.same_tensor(a, b);
      return;
    }
    // `number` holds the bits of a float too: NaNs of one payload are equal, 0.0 and -0.0 are not.
    is_same_ = a.kind == b.kind && a.boolean == b.boolean && a.number == b.number && a.text == b.text &&
               a.module() == b.module() && (a.kind != ValueKind::kOpaque || options_.opaque_by_class);
    push(a.items, b.items);
    push(a.callee, b.callee);
    const CallExtra none;
    const CallExtra &left = a.extra != nullptr ? *a.extra : none, &right = b.extra != nullptr ? *b.extra : none;
    is_same_ = is_same_ && left.is_new == right.is_new;
    push(left.list_items, right.list_items);
    push(left.dict_items, right.dict_items);
    push(left.state, right.state);
    push(left.kwargs, right.kwargs);
  }

  const Equality::Options& options_;
  std::int64_t& visits_;
  std::vector<Pair> todo_;
  HashSet<Pair> met_;
  bool is_same_ = true;
};

}  // namespace

bool Equality::is_equal(const Value& a, const Value& b) { return Comparison(options_, visits_).run(a, b); }

}  // namespace shard::pickle
