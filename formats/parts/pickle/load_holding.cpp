// Which values hold tensors. Values are mostly complete when another receives them, so a storage is noted for each
// holder on the way up. A value that is received before it is complete (it holds itself, or its holder) may get tensors
// later: who received such values is noted, and they are settled at the end.

#include <algorithm>

#include "formats/parts/pickle/machine.h"

namespace shard::pickle {

namespace {

/// Whether opcodes may add to the value after it was made.
bool may_receive(const Value& value) {
  switch (value.kind) {
    case ValueKind::kList:
    case ValueKind::kDict:
    case ValueKind::kSet:
    case ValueKind::kCall:
    case ValueKind::kOpaque:
      return true;
    default:
      return false;
  }
}

bool has_parts(const Value& value) {
  return value.kind == ValueKind::kTuple || value.kind == ValueKind::kFrozenSet || may_receive(value);
}

}  // namespace

void Machine::push_again(Value* value) {
  const bool is_noted = options_.opaque_unknown && options_.behind_opaque == nullptr;
  if (is_noted && may_receive(*value) && !storages_.contains(value)) open_.insert(value);
  push(value);
}

void Machine::note_parts(Value& owner, std::span<Value* const> parts) {
  for (Value* part : parts) note_part(owner, *part);
}

void Machine::note_part(Value& owner, Value& part) {
  if (!options_.opaque_unknown || options_.behind_opaque != nullptr) return;
  if (part.kind == ValueKind::kPersid) return note_storage(owner, part);
  if (!has_parts(part)) return;
  if (Value** storage = storages_.find(&part)) return note_storage(owner, **storage);
  if (open_.size() == 0 || !open_.contains(&part)) return;
  open_.insert(&owner);
  open_parts_.emplace_back(&part, &owner);
}

/// Notes that `storage` is below `owner`.
void Machine::note_storage(Value& owner, Value& storage) {
  if (!storages_.try_emplace(&owner, &storage).is_new) return;
  if (owner.kind == ValueKind::kOpaque) make_holder(owner, storage);
}

/// Makes an opaque object a call of its class, see is_foreign_holder.
void Machine::make_holder(Value& owner, Value& storage) {
  Value* const type = nodes_.make(ValueKind::kOpaque);
  *type = owner;
  Value* const parts[] = {&storage};
  owner = *nodes_.make_call(type, nodes_.fixed(parts));
}

void Machine::settle_open_parts() {
  const auto place = [](const auto& each) { return reinterpret_cast<std::uintptr_t>(each.first); };
  std::ranges::sort(open_parts_, {}, place);
  std::vector<const Value*> found;
  for (const auto& [part, owner] : open_parts_) {
    const bool is_first = found.empty() || found.back() != part;
    if (is_first && storages_.contains(part)) found.push_back(part);
  }
  while (!found.empty()) {
    const Value* const part = found.back();
    found.pop_back();
    for (const auto& [same, owner] :
         std::ranges::equal_range(open_parts_, reinterpret_cast<std::uintptr_t>(part), {}, place)) {
      if (storages_.contains(owner)) continue;
      note_storage(*owner, **storages_.find(part));
      found.push_back(owner);
    }
  }
}

}  // namespace shard::pickle
