#include <array>
#include <bit>
#include <charconv>
#include <cstring>

#include "formats/pickle/machine.h"
#include "formats/pickle/opcodes.h"

namespace shard::pickle {

namespace {

constexpr std::size_t kMaxLongBytes = 64 << 10;
constexpr int kMaxProtocol = 5;

}  // namespace

void Machine::fail(const std::string& what, ErrorCode code) const {
  const auto op = op_at_ < data_.size() ? static_cast<std::uint8_t>(data_[op_at_]) : std::uint8_t{0};
  const std::string_view name = op_at_ < data_.size() ? op_name(op) : "the end";
  const std::string opcode = name.empty() ? fmt::format("0x{:02x}", op) : std::string(name);
  throw Error(code, fmt::format("pickle, byte {} ({}): {}", op_at_, opcode, what)).in_file(options_.file).of_kind("bad_pickle");
}

std::string_view Machine::take(std::size_t count) {
  if (count > data_.size() - at_) {
    fail(fmt::format("wants {} bytes, but only {} are left", count, data_.size() - at_));
  }
  const std::string_view taken = data_.substr(at_, count);
  at_ += count;
  return taken;
}

std::uint64_t Machine::unsigned_field(std::size_t bytes) {
  static_assert(std::endian::native == std::endian::little);
  std::uint64_t number = 0;
  std::memcpy(&number, take(bytes).data(), bytes);
  return number;
}

std::string_view Machine::line() {
  const std::size_t end = data_.find('\n', at_);
  if (end == std::string_view::npos) fail("a line without an end");
  const std::string_view text = take(end - at_);
  ++at_;
  return text;
}

std::int64_t Machine::decimal(std::string_view text) const {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) fail("its line is no 64-bit decimal number");
  return number;
}

Value* Machine::pop() {
  need(1);
  Value* value = stack_.back();
  stack_.pop_back();
  return value;
}

std::size_t Machine::marked() {
  if (marks_.empty()) fail("no mark is on the stack");
  const std::size_t count = stack_.size() - marks_.back();
  marks_.pop_back();
  return count;
}

Value* Machine::run() {
  try {
    return run_opcodes();
  } catch (const BudgetSpent&) {
    fail("needs more memory than a pickle of this size may");
  }
}

Value* Machine::run_opcodes() {
  if (data_.empty()) fail("the pickle is empty");
  const auto first = static_cast<std::uint8_t>(data_[0]);
  if (first != kOpProto) {
    const bool is_opcode = !op_name(first).empty();
    fail("does not begin with PROTO: a pickle of protocol 0 or 1, or none",
         is_opcode ? ErrorCode::kUnsupported : ErrorCode::kCorruption);
  }
  at_ = 1;
  protocol_ = unsigned_field(1);
  if (protocol_ < 2 || protocol_ > kMaxProtocol) {
    fail(fmt::format("protocol {}; known are 2 to {}", protocol_, kMaxProtocol), ErrorCode::kUnsupported);
  }
  for (;;) {
    op_at_ = at_;
    const auto op = static_cast<std::uint8_t>(take(1)[0]);
    if (op == kOpStop) break;
    execute(op);
  }
  need(1);
  if (stack_.size() != 1 || !marks_.empty()) fail(fmt::format("{} values are left below the result", stack_.size() - 1));
  for (Value* owner : paired_) {
    drop_repeated_keys(owner->kind == ValueKind::kDict ? owner->items : owner->extra->dict_items);
  }
  return stack_[0];
}

void Machine::execute(std::uint8_t op) {
  if (memo(op) || scalar(op) || text(op) || container(op) || object(op)) return;
  if (op == kOpFrame) {
    const std::uint64_t length = unsigned_field(8);
    if (length > data_.size() - at_) fail(fmt::format("a frame of {} bytes, but {} are left", length, data_.size() - at_));
    return;
  }
  fail(op_name(op).empty() ? "no opcode of Python's" : "an opcode that no checkpoint needs; it is refused");
}

bool Machine::scalar(std::uint8_t op) {
  switch (op) {
    case kOpNone: push(nodes_.none()); return true;
    case kOpNewTrue: push(nodes_.boolean(true)); return true;
    case kOpNewFalse: push(nodes_.boolean(false)); return true;
    case kOpBinInt1: push(nodes_.integer(static_cast<std::int64_t>(unsigned_field(1)))); return true;
    case kOpBinInt2: push(nodes_.integer(static_cast<std::int64_t>(unsigned_field(2)))); return true;
    case kOpBinInt: push(nodes_.integer(static_cast<std::int32_t>(unsigned_field(4)))); return true;
    case kOpLong1: push_long(counted(1)); return true;
    case kOpLong4: push_long(counted(4)); return true;
    case kOpBinFloat: {
      Value* value = nodes_.make(ValueKind::kFloat);
      value->real = std::bit_cast<double>(__builtin_bswap64(unsigned_field(8)));
      push(value);
      return true;
    }
    case kOpInt: {  // Python 2 wrote integers between 32 and 64 bits, and older bools, as text.
      const std::string_view digits = line();
      const bool is_bool = digits == "00" || digits == "01";
      push(is_bool ? nodes_.boolean(digits == "01") : nodes_.integer(decimal(digits)));
      return true;
    }
    default: return false;
  }
}

void Machine::push_long(std::string_view bytes) {
  if (bytes.size() > kMaxLongBytes) fail(fmt::format("an integer of {} bytes; the limit is {}", bytes.size(), kMaxLongBytes));
  const auto sign_of = [](char byte) { return static_cast<std::int8_t>(byte) < 0 ? '\xFF' : '\0'; };
  while (bytes.size() > 8 && bytes.back() == sign_of(bytes[bytes.size() - 2])) bytes.remove_suffix(1);
  if (bytes.size() > 8) return push(nodes_.make_text(ValueKind::kLong, bytes));
  std::array<char, 8> full;
  full.fill(bytes.empty() ? '\0' : sign_of(bytes.back()));
  std::ranges::copy(bytes, full.begin());
  push(nodes_.integer(std::bit_cast<std::int64_t>(full)));
}

bool Machine::text(std::uint8_t op) {
  switch (op) {
    case kOpShortBinUnicode: push_string(counted(1)); return true;
    case kOpBinUnicode: push_string(counted(4)); return true;
    case kOpBinUnicode8: push_string(counted(8)); return true;
    case kOpShortBinString:
    case kOpBinString: {  // Python 2's str: text as torch decodes it, else bytes.
      const std::string_view bytes = counted(op == kOpBinString ? 4 : 1);
      push(nodes_.make_text(is_python_utf8(bytes) ? ValueKind::kString : ValueKind::kBytes, bytes));
      return true;
    }
    case kOpShortBinBytes: push(nodes_.make_text(ValueKind::kBytes, counted(1))); return true;
    case kOpBinBytes: push(nodes_.make_text(ValueKind::kBytes, counted(4))); return true;
    case kOpBinBytes8: push(nodes_.make_text(ValueKind::kBytes, counted(8))); return true;
    case kOpByteArray8: push(nodes_.make_text(ValueKind::kByteArray, counted(8))); return true;
    default: return false;
  }
}

void Machine::push_string(std::string_view bytes) {
  if (!is_python_utf8(bytes)) fail("a string that is no UTF-8");
  push(nodes_.make_text(ValueKind::kString, bytes));
}

Value* load(Arena& arena, std::span<const std::byte> data, const LoadOptions& options, std::size_t* consumed) {
  Machine machine(arena, data, options);
  Value* root = machine.run();
  if (consumed != nullptr) *consumed = machine.position();
  return root;
}

}  // namespace shard::pickle
