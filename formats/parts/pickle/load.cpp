#include <array>
#include <bit>

#include "formats/parts/pickle/machine.h"
#include "formats/parts/pickle/opcodes.h"
#include "libshard/core/parse_number.h"

namespace shard::pickle {

namespace {

constexpr std::size_t kMaxLongBytes = 64 << 10;
constexpr int kMaxProtocol = 5;

}  // namespace

void Machine::fail(const std::string& what, ErrorCode code) const {
  const auto op = op_at_ < data_.size() ? static_cast<std::uint8_t>(data_[op_at_]) : std::uint8_t{0};
  const std::string_view name = op_at_ < data_.size() ? op_name(op) : "the end";
  const std::string opcode = name.empty() ? fmt::format("0x{:02x}", op) : std::string(name);
  throw Error(code, fmt::format("cannot read the pickle at byte {} ({}): {}", op_at_, opcode, what))
      .in_file(options_.file)
      .of_kind(FindingKind::kBadPickle);
}

void Machine::fail_short(std::size_t count) const {
  fail(fmt::format("wants {} bytes, but only {} are left", count, data_.size() - at_));
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
    fail("does not begin with PROTO: a pickle of protocol 0 or 1, or none",
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
    } else if (owner->kind == ValueKind::kCall && owner->extra() != nullptr) {  // A holder of tensors has none.
      owner->extra()->dict_items = without_repeated_keys(owner->extra()->dict_items);
    }
  }
  settle_open_parts();
  refuse_tensor_keys(*stack_[0]);
  return stack_[0];
}

/// What each opcode does; those that are not listed are refused.
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

/// Python 2 wrote integers between 32 and 64 bits, and older bools, as text.
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

/// Python 2's str: text, as torch decodes it, or else bytes.
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

}  // namespace shard::pickle
