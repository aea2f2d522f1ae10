#include "formats/parts/pickle/nodes.h"

#include <algorithm>
#include <bit>
#include <compare>
#include <functional>
#include <memory>
#include <vector>

namespace shard::pickle {

namespace {

/// A key's value as a number and a text. 1 and True are the same key in Python.
struct KeyText {
  bool comparable = false;
  ValueKind kind = ValueKind::kNone;
  std::int64_t number = 0;
  std::string_view text;

  explicit KeyText(const Value& key) {
    switch (key.kind) {
      case ValueKind::kNone:
        comparable = true;
        break;
      case ValueKind::kBool:
        comparable = true, kind = ValueKind::kInt, number = key.boolean() ? 1 : 0;
        break;
      case ValueKind::kInt:
        comparable = true, kind = ValueKind::kInt, number = key.number;
        break;
      case ValueKind::kString:
      case ValueKind::kBytes:
        comparable = true, kind = key.kind, text = key.text();
        break;
      default:
        break;
    }
  }
  friend auto operator<=>(const KeyText&, const KeyText&) = default;
  std::size_t hash() const {
    if (kind == ValueKind::kInt) return static_cast<std::size_t>(number);
    return std::hash<std::string_view>{}(text) + static_cast<std::size_t>(kind);
  }
};

struct HashedPair {
  std::size_t hash;
  std::size_t pair;
};

/// Sorts pairs so that equal keys are adjacent. Sorting replaces a hash table, because a file could be built so that
/// all its keys collide.
std::vector<HashedPair> by_key(std::span<Value* const> pairs) {
  std::vector<HashedPair> order;
  order.reserve(pairs.size() / 2);
  for (std::size_t i = 0; i < pairs.size() / 2; ++i) {
    const KeyText key(*pairs[2 * i]);
    if (key.comparable) order.push_back({key.hash(), i});
  }
  std::ranges::sort(order, [&](const HashedPair& a, const HashedPair& b) {
    if (a.hash != b.hash) return a.hash < b.hash;
    const auto keys = KeyText(*pairs[2 * a.pair]) <=> KeyText(*pairs[2 * b.pair]);
    return keys != 0 ? keys < 0 : a.pair < b.pair;
  });
  return order;
}

/// True if no key repeats. Compares all pairs of a few keys.
bool few_keys_differ(std::span<Value* const> pairs) {
  for (std::size_t i = 2; i < pairs.size(); i += 2) {
    const KeyText key(*pairs[i]);
    for (std::size_t j = 0; key.comparable && j < i; j += 2) {
      if (KeyText(*pairs[j]) == key) return false;
    }
  }
  return true;
}

/// Small arrays have exactly the needed capacity, rounded up to a pair, because most never grow. Others double.
std::size_t capacity_of(std::size_t size) { return size <= 16 ? size + size % 2 : std::bit_ceil(size); }

}  // namespace

Nodes::Nodes(Arena& arena) : arena_(arena) {
  none_ = make(ValueKind::kNone);
  true_ = make(ValueKind::kBool);
  true_->number = 1;
  false_ = make(ValueKind::kBool);
  empty_tuple_ = make(ValueKind::kTuple);
}

void Nodes::refill(std::size_t bytes) {
  constexpr std::size_t kMostBytes = 64 << 10;
  const std::size_t wanted = std::max(bytes, block_bytes_);
  block_ = {static_cast<std::byte*>(arena_.allocate(wanted, alignof(Value*))), wanted};
  block_bytes_ = std::min(block_bytes_ * 2, kMostBytes);
}

Value* Nodes::make(ValueKind kind) {
  Value* value = std::construct_at(room_for<Value>(1));
  value->kind = kind;
  return value;
}

Value* Nodes::make_text(ValueKind kind, std::string_view text) {
  Value* value = make(kind);
  value->set_text(text);
  return value;
}

Value* Nodes::make_call(Value* callee, std::span<Value*> arguments) {
  Value* value = make(ValueKind::kCall);
  value->call = std::construct_at(room_for<CallParts>(1));
  value->call->callee = callee;
  value->set_items(arguments);
  return value;
}

std::span<char> Nodes::characters(std::size_t count) { return arena_.array<char>(count); }

Value* Nodes::make_global(ValueKind kind, std::string_view module, std::string_view name) {
  Value* value = shard::make_global(arena_, module, name);
  value->kind = kind;
  return value;
}

Value* Nodes::integer(std::int64_t number) {
  const std::uint64_t hash = static_cast<std::uint64_t>(number) * 0x9E3779B97F4A7C15;
  Value*& recent = recent_ints_[hash >> 54];
  if (recent == nullptr || recent->number != number) {
    recent = make(ValueKind::kInt);
    recent->number = number;
  }
  return recent;
}

CallExtra& Nodes::extra_of(Value& call) {
  if (call.call->extra == nullptr) call.call->extra = std::construct_at(room_for<CallExtra>(1));
  return *call.call->extra;
}

std::span<Value*> Nodes::fixed(std::span<Value* const> items) {
  Value** copy = room_for<Value*>(items.size());
  std::ranges::copy(items, copy);
  return {copy, items.size()};
}

void Nodes::append(std::span<Value*>& array, std::span<Value* const> items) {
  const std::size_t size = array.size() + items.size();
  Value** data = array.data();
  if (size > capacity_of(array.size())) {
    data = room_for<Value*>(capacity_of(size));
    std::ranges::copy(array, data);
  }
  std::ranges::copy(items, data + array.size());
  array = {data, size};
}

std::span<Value*> without_repeated_keys(std::span<Value*> pairs) {
  constexpr std::size_t kFew = 2 * 8;
  if (pairs.size() <= kFew && few_keys_differ(pairs)) return pairs;
  const std::vector<HashedPair> order = by_key(pairs);
  std::vector<bool> repeats(pairs.size() / 2, false);
  for (std::size_t i = 1, first = 0; i < order.size(); ++i) {
    const bool same = order[i].hash == order[first].hash &&
                      KeyText(*pairs[2 * order[i].pair]) == KeyText(*pairs[2 * order[first].pair]);
    if (!same) {
      first = i;
      continue;
    }
    repeats[order[i].pair] = true;
    pairs[2 * order[first].pair + 1] = pairs[2 * order[i].pair + 1];
  }
  std::size_t kept = 0;
  for (std::size_t i = 0; i < pairs.size() / 2; ++i) {
    if (repeats[i]) continue;
    pairs[2 * kept] = pairs[2 * i];
    pairs[2 * kept + 1] = pairs[2 * i + 1];
    ++kept;
  }
  return pairs.first(2 * kept);
}

}  // namespace shard::pickle
