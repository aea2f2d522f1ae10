// What the machine demands of the keys of dicts and the elements of sets.

#include "formats/parts/pickle/machine.h"

namespace shard::pickle {

namespace {

/// Python hashes the keys of dicts and the elements of sets, and has no hash of these.
bool is_unhashable(const Value& value) {
  return value.kind == ValueKind::kList || value.kind == ValueKind::kDict || value.kind == ValueKind::kSet ||
         value.kind == ValueKind::kByteArray;
}

/// True for a call that rebuilds a tensor of any kind, or a Parameter, and for a bare storage.
bool is_tensor(const Value& value) {
  if (value.kind == ValueKind::kPersid) return true;
  if (value.kind != ValueKind::kCall || value.callee()->kind != ValueKind::kGlobal) return false;
  const std::string_view module = value.callee()->module();
  return (module == "torch._utils" || module == "torch._tensor" || module == "torch.tensor") &&
         value.callee()->text().starts_with("_rebuild_");
}

}  // namespace

/// Checks every `step`-th of `values`: the keys of a dict, or the elements of a set. Whether a tensor among them
/// matters is known at the end: see refuse_tensor_keys.
void Machine::check_keys(const Value& owner, std::span<Value* const> values, std::size_t step) {
  for (std::size_t i = 0; i < values.size(); i += step) check_key(owner, *values[i]);
}

void Machine::check_key(const Value& owner, const Value& key) {
  const auto check = [&](const Value& part) {
    if (is_unhashable(part)) fail(fmt::format("a {} cannot be a key or an element of a set", type_name(part)));
    if (is_tensor(part)) tensor_keyed_.push_back({&owner, op_at_});
  };
  check(key);
  if (key.kind != ValueKind::kTuple) return;
  std::vector<const Value*> tuples{&key};
  while (!tuples.empty()) {
    const Value& tuple = *tuples.back();
    tuples.pop_back();
    if (!checked_tuples_.insert(&tuple)) continue;
    for (const Value* part : tuple.items()) {
      check(*part);
      if (part->kind == ValueKind::kTuple) tuples.push_back(part);
    }
  }
}

/// Python takes tensors for keys, by identity, which no other file can repeat. They are refused where the result holds
/// them; the state of an opaque object, which is dropped, may hold such a dict (an optimizer does).
void Machine::refuse_tensor_keys(const Value& root) {
  if (tensor_keyed_.empty()) return;
  VisitedSet reached;
  ValueWalk walk(root, &reached);
  while (walk.next() != nullptr) {
  }
  for (const auto& [owner, position] : tensor_keyed_) {
    if (reached.insert(owner)) continue;
    op_at_ = position;
    fail("a tensor is a key or an element of a set, which cannot be kept", ErrorCode::kUnsupported);
  }
}

}  // namespace shard::pickle
