#include "libshard/core/value_walk.h"

#include <fmt/format.h>

#include "libshard/core/error.h"

namespace shard {

void check_depth(int depth) {
  if (depth <= kMaxValueDepth) return;
  throw Error(ErrorCode::kCorruption, fmt::format("containers nest deeper than {}", kMaxValueDepth))
      .because("a container probably contains itself")
      .of_kind(FindingKind::kBadPickle);
}

const Value* ValueWalk::next() {
  if (last_ != nullptr) {
    const bool is_leaf = last_->items().empty() && last_->kind != ValueKind::kCall;
    if (!is_leaf && met_.insert(last_)) for_each_child(*last_, [this](const Value& child) { add(child); });
    last_ = nullptr;
  }
  if (open_.empty()) return nullptr;
  last_ = open_.back();
  open_.pop_back();
  return last_;
}

Value* ValueCopier::copy(const Value& value) {
  Value* const made = copied(const_cast<Value*>(&value));
  while (!open_.empty()) {
    Value& next = *open_.back();
    open_.pop_back();
    fill(next);
  }
  return made;
}

/// A copy that refers to the parts of the original until its own parts are copied.
Value* ValueCopier::copied(Value* value) {
  if (value == nullptr) return nullptr;
  if (Value* const* const known = copies_.find(value)) return *known;
  Value* made = nullptr;
  if (value->kind == ValueKind::kGlobal || value->kind == ValueKind::kOpaque) {
    made = make_global(to_, value->module(), value->text());
  } else {
    made = copy_of(to_, *value);
    if (value->has_text()) made->set_text(to_.copy(value->text()));
  }
  made->kind = value->kind;
  copies_.try_emplace(value, made);
  if (value->has_elements() || value->kind == ValueKind::kCall) open_.push_back(made);
  return made;
}

std::span<Value*> ValueCopier::copied(std::span<Value* const> values) {
  const std::span<Value*> made = to_.array<Value*>(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) made[i] = copied(values[i]);
  return made;
}

void ValueCopier::fill(Value& made) {
  if (made.kind == ValueKind::kCall) {
    made.call = copy_of_call(to_, made)->call;
    made.call->callee = copied(made.callee());
    made.call->state = copied(made.state());
    if (CallExtra* const extra = made.extra(); extra != nullptr) {
      extra->list_items = copied(extra->list_items);
      extra->dict_items = copied(extra->dict_items);
      extra->kwargs = copied(extra->kwargs);
    }
  }
  made.set_items(copied(made.items()));
}

}  // namespace shard
