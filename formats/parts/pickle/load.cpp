#include <algorithm>
#include <array>
#include <bit>

#include "formats/parts/pickle/machine.h"
#include "formats/parts/pickle/opcodes.h"
#include "libshard/core/parse_number.h"
#include "libshard/core/utf8.h"

namespace shard::pickle {

namespace {

/// True if later opcodes may add to the value.
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

/// True for values that Python cannot hash, so they cannot be keys of dicts or elements of sets.
bool is_unhashable(const Value& value) {
  return value.kind == ValueKind::kList || value.kind == ValueKind::kDict || value.kind == ValueKind::kSet ||
         value.kind == ValueKind::kByteArray;
}

/// True for a call that rebuilds a tensor of any kind or a Parameter, and for a bare storage.
bool is_tensor(const Value& value) {
  if (value.kind == ValueKind::kPersid) return true;
  if (value.kind != ValueKind::kCall || value.callee()->kind != ValueKind::kGlobal) return false;
  const std::string_view module = value.callee()->module();
  return (module == "torch._utils" || module == "torch._tensor" || module == "torch.tensor") &&
         value.callee()->text().starts_with("_rebuild_");
}

constexpr std::size_t kMaxLongBytes = 64 << 10;
constexpr int kMaxProtocol = 5;

}  // namespace

void Machine::fail(const std::string& what, ErrorCode code) const { throw failure(what, code); }

Error Machine::failure(const std::string& what, ErrorCode code) const {
  const auto op = op_at_ < data_.size() ? static_cast<std::uint8_t>(data_[op_at_]) : std::uint8_t{0};
  const std::string_view name = op_at_ < data_.size() ? op_name(op) : "the end";
  const std::string opcode = name.empty() ? fmt::format("0x{:02x}", op) : std::string(name);
  return Error(code, fmt::format("cannot read the pickle at byte {} ({}): {}", op_at_, opcode, what))
      .in_file(options_.file)
      .of_kind(FindingKind::kBadPickle);
}

void Machine::fail_short(std::size_t count) const {
  fail(fmt::format("needs {} bytes, but only {} are left", count, data_.size() - at_));
}

void Machine::fail_shallow(std::size_t count) const {
  fail(fmt::format("needs {} values, finds {}", count, stack_.size() - floor()));
}

std::string_view Machine::line() {
  const std::size_t end = data_.find('\n', at_);
  if (end == std::string_view::npos) fail("a line without an end");
  const std::string_view text = take(end - at_);
  ++at_;
  return text;
}

std::int64_t Machine::decimal(std::string_view text) const {
  const std::optional<std::int64_t> number = parse_number(text);
  if (!number) fail("its line is not a 64-bit decimal number");
  return *number;
}

std::size_t Machine::marked() {
  if (marks_.empty()) fail("no mark is on the stack");
  const std::size_t count = stack_.size() - marks_.back();
  marks_.pop_back();
  return count;
}

Value* Machine::run() {
  if (data_.empty()) fail("the pickle is empty");
  const auto first = static_cast<std::uint8_t>(data_[0]);
  if (first != kOpProto) {
    const bool may_be_old = !op_name(first).empty() && static_cast<std::uint8_t>(data_.back()) == kOpStop;
    fail("does not begin with PROTO: it is of protocol 0 or 1, or is not a pickle",
         may_be_old ? ErrorCode::kUnsupported : ErrorCode::kCorruption);
  }
  at_ = 1;
  protocol_ = unsigned_field(1);
  if (protocol_ < 2 || protocol_ > kMaxProtocol) {
    fail(fmt::format("protocol {} is not supported (2 to {} are)", protocol_, kMaxProtocol), ErrorCode::kUnsupported);
  }
  for (;;) {
    op_at_ = at_;
    const auto op = static_cast<std::uint8_t>(take(1)[0]);
    if (op == kOpStop) break;
    kSteps[op](*this);
  }
  need(1);
  if (stack_.size() != 1 || !marks_.empty())
    fail(fmt::format("{} values are left below the result", stack_.size() - 1));
  for (Value* owner : paired_) {
    if (owner->kind == ValueKind::kDict) {
      owner->set_items(without_repeated_keys(owner->items()));
    } else if (owner->kind == ValueKind::kCall && owner->extra() != nullptr) {
      // The call of an object that contains tensors has no extra data.
      owner->extra()->dict_items = without_repeated_keys(owner->extra()->dict_items);
    }
  }
  resolve_open_parts();
  refuse_tensor_keys(*stack_[0]);
  return stack_[0];
}

/// The function of each opcode. An opcode without one is refused.
constinit const Machine::Steps Machine::kSteps = steps_of({
    // The memo.
    {kOpMemoize, [](Machine& m) { m.put(m.memo_count_); }},
    {kOpBinPut, [](Machine& m) { m.put(m.unsigned_field(1)); }},
    {kOpLongBinPut, [](Machine& m) { m.put(m.unsigned_field(4)); }},
    {kOpPut, [](Machine& m) { m.put(static_cast<std::uint64_t>(m.decimal(m.line()))); }},
    {kOpBinGet, [](Machine& m) { m.get(m.unsigned_field(1)); }},
    {kOpLongBinGet, [](Machine& m) { m.get(m.unsigned_field(4)); }},
    {kOpGet, [](Machine& m) { m.get(static_cast<std::uint64_t>(m.decimal(m.line()))); }},
    // Atoms.
    {kOpNone, [](Machine& m) { m.push(m.nodes_.none()); }},
    {kOpNewTrue, [](Machine& m) { m.push(m.nodes_.boolean(true)); }},
    {kOpNewFalse, [](Machine& m) { m.push(m.nodes_.boolean(false)); }},
    {kOpBinInt1, [](Machine& m) { m.push(m.nodes_.integer(static_cast<std::int64_t>(m.unsigned_field(1)))); }},
    {kOpBinInt2, [](Machine& m) { m.push(m.nodes_.integer(static_cast<std::int64_t>(m.unsigned_field(2)))); }},
    {kOpBinInt, [](Machine& m) { m.push(m.nodes_.integer(static_cast<std::int32_t>(m.unsigned_field(4)))); }},
    {kOpInt, [](Machine& m) { m.push_int_line(); }},
    {kOpLong1, [](Machine& m) { m.push_long(m.counted(1)); }},
    {kOpLong4, [](Machine& m) { m.push_long(m.counted(4)); }},
    {kOpBinFloat, [](Machine& m) { m.push_float(); }},
    // Texts and bytes.
    {kOpShortBinUnicode, [](Machine& m) { m.push_string(m.counted(1)); }},
    {kOpBinUnicode, [](Machine& m) { m.push_string(m.counted(4)); }},
    {kOpBinUnicode8, [](Machine& m) { m.push_string(m.counted(8)); }},
    {kOpShortBinString, [](Machine& m) { m.push_old_string(m.counted(1)); }},
    {kOpBinString, [](Machine& m) { m.push_old_string(m.counted(4)); }},
    {kOpShortBinBytes, [](Machine& m) { m.push(m.nodes_.make_text(ValueKind::kBytes, m.counted(1))); }},
    {kOpBinBytes, [](Machine& m) { m.push(m.nodes_.make_text(ValueKind::kBytes, m.counted(4))); }},
    {kOpBinBytes8, [](Machine& m) { m.push(m.nodes_.make_text(ValueKind::kBytes, m.counted(8))); }},
    {kOpByteArray8, [](Machine& m) { m.push(m.nodes_.make_text(ValueKind::kByteArray, m.counted(8))); }},
    // Collections.
    {kOpMark, [](Machine& m) { m.marks_.push_back(m.stack_.size()); }},
    {kOpEmptyTuple, [](Machine& m) { m.push(m.nodes_.empty_tuple()); }},
    {kOpEmptyList, [](Machine& m) { m.push(m.nodes_.make(ValueKind::kList)); }},
    {kOpEmptyDict, [](Machine& m) { m.push(m.nodes_.make(ValueKind::kDict)); }},
    {kOpEmptySet, [](Machine& m) { m.push(m.nodes_.make(ValueKind::kSet)); }},
    {kOpTuple1, [](Machine& m) { m.push_collection(ValueKind::kTuple, 1); }},
    {kOpTuple2, [](Machine& m) { m.push_collection(ValueKind::kTuple, 2); }},
    {kOpTuple3, [](Machine& m) { m.push_collection(ValueKind::kTuple, 3); }},
    {kOpTuple, [](Machine& m) { m.push_collection(ValueKind::kTuple, m.marked()); }},
    {kOpList, [](Machine& m) { m.push_collection(ValueKind::kList, m.marked()); }},
    {kOpDict, [](Machine& m) { m.push_collection(ValueKind::kDict, m.marked()); }},
    {kOpFrozenSet, [](Machine& m) { m.push_collection(ValueKind::kFrozenSet, m.marked()); }},
    {kOpAppend, [](Machine& m) { m.append(1); }},
    {kOpAppends, [](Machine& m) { m.append(m.marked()); }},
    {kOpSetItem, [](Machine& m) { m.set_items(2); }},
    {kOpSetItems, [](Machine& m) { m.set_items(m.marked()); }},
    {kOpAddItems, [](Machine& m) { m.add_items(m.marked()); }},
    // Globals and calls.
    {kOpGlobal, [](Machine& m) { m.global_line(); }},
    {kOpStackGlobal, [](Machine& m) { m.stack_global(); }},
    {kOpBinPersid, [](Machine& m) { m.persistent_id(); }},
    {kOpReduce, [](Machine& m) { m.reduce(); }},
    {kOpNewObj, [](Machine& m) { m.new_object(nullptr); }},
    {kOpNewObjEx, [](Machine& m) { m.new_object_with_keywords(); }},
    {kOpBuild, [](Machine& m) { m.build(); }},
    // The stack.
    {kOpPop, [](Machine& m) { m.pop_value_or_mark(); }},
    {kOpPopMark, [](Machine& m) { m.drop(m.marked()); }},
    {kOpDup, [](Machine& m) { m.push_again(&m.below(0)); }},
    {kOpFrame, [](Machine& m) { m.check_frame(m.unsigned_field(8)); }},
});

void Machine::refuse() {
  const auto op = static_cast<std::uint8_t>(data_[op_at_]);
  fail(op_name(op).empty() ? "not an opcode of Python" : "an opcode that checkpoints do not use; refused");
}

void Machine::check_frame(std::uint64_t length) const {
  if (length > data_.size() - at_)
    fail(fmt::format("a frame of {} bytes, but {} are left", length, data_.size() - at_));
}

void Machine::push_float() {
  Value* value = nodes_.make(ValueKind::kFloat);
  value->real = std::bit_cast<double>(__builtin_bswap64(unsigned_field(8)));
  push(value);
}

/// Python 2 wrote integers from 32 to 64 bits, and older bools, as text.
void Machine::push_int_line() {
  const std::string_view digits = line();
  const bool is_bool = digits == "00" || digits == "01";
  push(is_bool ? nodes_.boolean(digits == "01") : nodes_.integer(decimal(digits)));
}

void Machine::push_long(std::string_view bytes) {
  if (bytes.size() > kMaxLongBytes)
    fail(fmt::format("an integer of {} bytes; the limit is {}", bytes.size(), kMaxLongBytes));
  const auto sign_of = [](char byte) { return static_cast<std::int8_t>(byte) < 0 ? '\xFF' : '\0'; };
  while (bytes.size() > 8 && bytes.back() == sign_of(bytes[bytes.size() - 2])) bytes.remove_suffix(1);
  if (bytes.size() > 8) return push(nodes_.make_text(ValueKind::kLong, bytes));
  std::array<char, 8> full;
  full.fill(bytes.empty() ? '\0' : sign_of(bytes.back()));
  std::ranges::copy(bytes, full.begin());
  push(nodes_.integer(std::bit_cast<std::int64_t>(full)));
}

/// Python 2's str: a text if torch can decode it, otherwise bytes.
void Machine::push_old_string(std::string_view bytes) {
  push(nodes_.make_text(is_python_utf8(bytes) ? ValueKind::kString : ValueKind::kBytes, bytes));
}

void Machine::push_string(std::string_view bytes) {
  if (!is_python_utf8(bytes)) fail("a string that is not UTF-8");
  push(nodes_.make_text(ValueKind::kString, bytes));
}

Value* load(Arena& arena, std::span<const std::byte> data, const LoadOptions& options, std::size_t* consumed) {
  try {
    Machine machine(arena, data, options);
    Value* root = machine.run();
    if (consumed != nullptr) *consumed = machine.position();
    return root;
  } catch (Error& error) {
    throw error.in_file(options.file);
  }
}

/// Checks every `step`-th of `values`: the keys of a dict, or the elements of a set. Whether a tensor among them
/// matters is decided at the end: see refuse_tensor_keys.
void Machine::check_keys(Value& owner, std::span<Value* const> values, std::size_t step) {
  for (std::size_t i = 0; i < values.size(); i += step) check_key(owner, *values[i]);
}

void Machine::check_key(Value& owner, const Value& key) {
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

/// Refuses tensors as keys, if the result contains them: Python compares them by identity, which no other file can
/// reproduce. The state of an opaque object may contain such a dict (an optimizer's does), because it is dropped. With
/// opaque_unknown, the dicts and sets become opaque objects themselves.
void Machine::refuse_tensor_keys(const Value& root) {
  if (tensor_keyed_.empty()) return;
  VisitedSet reached;
  ValueWalk walk(root, &reached);
  while (walk.next() != nullptr) {
  }
  for (const auto& [owner, position] : tensor_keyed_) {
    if (!reached.contains(owner) || is_foreign_holder(*owner)) continue;
    Value* const* const storage = storages_.find(owner);
    if (storage != nullptr) {
      const std::string_view type = type_name(*owner);
      const std::string_view module = is_known_global("builtins", type) ? "builtins" : "collections";
      *owner = *nodes_.make_global(ValueKind::kOpaque, module, type);
      make_holder(*owner, **storage);
      continue;
    }
    op_at_ = position;
    Error error = failure("a tensor is a key or an element of a set, which cannot be kept", ErrorCode::kUnsupported);
    if (options_.suggest_opaque) error.suggest(Remedy::kOpaqueGlobals);
    throw error;
  }
}

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

/// Records that `owner` contains `storage`.
void Machine::note_storage(Value& owner, Value& storage) {
  if (!storages_.try_emplace(&owner, &storage).is_new) return;
  if (owner.kind == ValueKind::kOpaque) make_holder(owner, storage);
}

/// Turns an opaque object into a call of its class, see is_foreign_holder.
void Machine::make_holder(Value& owner, Value& storage) {
  Value* const type = nodes_.make(ValueKind::kOpaque);
  *type = owner;
  Value* const parts[] = {&storage};
  owner = *nodes_.make_call(type, nodes_.fixed(parts));
}

void Machine::resolve_open_parts() {
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
