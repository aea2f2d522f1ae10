#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cstring>
#include <unordered_map>

#include "formats/pickle/nodes.h"
#include "formats/pickle/opcodes.h"
#include "formats/pickle/pickle.h"
#include "libshard/core/error.h"

namespace shard::pickle {

namespace {

constexpr std::size_t kMaxLongBytes = 64 << 10;
constexpr int kMaxProtocol = 5;

/// How many bytes an opcode's length or index field takes.
enum class Field : std::uint8_t { k1 = 1, k4 = 4, k8 = 8 };

/// What Python 2 called modules and names, as far as such pickles hold data.
std::string_view modern_module(std::string_view module) {
  if (module == "__builtin__") return "builtins";
  return module == "copy_reg" ? "copyreg" : module;
}
std::string_view modern_builtin(std::string_view name) {
  if (name == "unicode") return "str";
  if (name == "xrange") return "range";
  return name == "long" ? "int" : name;
}

bool is_getattr_call(const Value& value) { return value.is_call_of("builtins", "getattr"); }

/// True for what REDUCE and NEWOBJ may call: a class or function by name, or a class inside a class.
bool is_callable(const Value& value) {
  return value.kind == ValueKind::kGlobal || value.kind == ValueKind::kOpaque || is_getattr_call(value);
}

/// The machine of one pickle: a stack, marks, a memo. Every opcode checks what it takes before it takes it.
class Machine {
 public:
  Machine(Arena& arena, std::span<const std::byte> data, const LoadOptions& options)
      : data_(reinterpret_cast<const char*>(data.data()), data.size()), options_(options),
        nodes_(arena, options.max_bytes != 0 ? options.max_bytes : std::max<std::size_t>(data.size() * 128, 1 << 20)) {}

  Value* run();
  std::size_t position() const { return at_; }
  [[noreturn]] void fail(const std::string& what, ErrorCode code = ErrorCode::kCorruption) const;

 private:
  // Bytes of the input.
  std::string_view take(std::size_t count);
  std::uint64_t unsigned_field(std::size_t bytes);
  std::string_view counted(Field length) { return take_counted(unsigned_field(static_cast<std::size_t>(length))); }
  std::string_view take_counted(std::uint64_t count);
  std::string_view line();
  std::int64_t decimal_line();

  // The stack.
  void push(Value* value) { stack_.push_back(value); }
  std::size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }
  void need(std::size_t count) const {
    if (stack_.size() - floor() < count) fail(fmt::format("needs {} values, finds {}", count, stack_.size() - floor()));
  }
  Value* pop();
  Value& top();
  std::span<Value* const> pop_to_mark();
  void release_mark(std::size_t size) { stack_.resize(size); }

  // Groups of opcodes; each returns false if the opcode is none of its own.
  bool scalar(std::uint8_t op);
  bool text(std::uint8_t op);
  bool container(std::uint8_t op);
  bool memo(std::uint8_t op);
  bool object(std::uint8_t op);
  void execute(std::uint8_t op);

  void push_string(std::string_view bytes);
  void push_long(std::string_view bytes);
  void push_tuple(std::size_t count);
  void push_collection(ValueKind kind);
  void append(std::span<Value* const> items);
  void set_items(std::span<Value* const> pairs);
  void add_items();
  void put(std::uint64_t index);
  void get(std::uint64_t index);
  void push_global(std::string_view module, std::string_view name);
  void stack_global();
  void reduce();
  void new_object(bool with_kwargs);
  void build();
  void push_call(Value* callee, Value* arguments);
  void check_getattr(const Value& arguments) const;
  bool push_opaque_result(const Value& callee, const Value& arguments);
  void note_pairs(Value& owner) { paired_.push_back(&owner); }

  std::string_view data_;
  const LoadOptions& options_;
  Nodes nodes_;
  std::size_t at_ = 0;      ///< The next byte.
  std::size_t op_at_ = 0;   ///< The opcode in execution, for messages.
  std::uint64_t protocol_ = 0;
  std::vector<Value*> stack_;
  std::vector<std::size_t> marks_;  ///< Stack sizes.
  std::vector<Value*> memo_;        ///< Null where nothing was put.
  std::size_t memo_count_ = 0;
  std::unordered_map<std::string, Value*> globals_;  ///< By "module\nname".
  std::vector<Value*> paired_;                       ///< Dicts and calls that received keys.
};

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

std::string_view Machine::take_counted(std::uint64_t count) { return take(static_cast<std::size_t>(count)); }

std::string_view Machine::line() {
  const std::size_t end = data_.find('\n', at_);
  if (end == std::string_view::npos) fail("a line without an end");
  const std::string_view text = take(end - at_);
  ++at_;
  return text;
}

std::int64_t Machine::decimal_line() {
  const std::string_view text = line();
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

Value& Machine::top() {
  need(1);
  return *stack_.back();
}

/// The values above the last mark, which is removed; they stay on the stack's memory until release_mark or a push.
std::span<Value* const> Machine::pop_to_mark() {
  if (marks_.empty()) fail("no mark is on the stack");
  const std::span<Value* const> items = std::span(stack_).subspan(marks_.back());
  marks_.pop_back();
  return items;
}

Value* Machine::run() {
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
    fail(fmt::format("protocol {}; shardctl reads 2 to {}", protocol_, kMaxProtocol), ErrorCode::kUnsupported);
  }
  for (;;) {
    op_at_ = at_;
    const auto op = static_cast<std::uint8_t>(take(1)[0]);
    if (op == kOpStop) break;
    execute(op);
  }
  Value* root = pop();
  if (!stack_.empty() || !marks_.empty()) fail(fmt::format("{} values are left below the result", stack_.size()));
  for (Value* owner : paired_) {
    drop_repeated_keys(owner->kind == ValueKind::kDict ? owner->items : owner->extra->dict_items);
  }
  return root;
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
    case kOpLong1: push_long(counted(Field::k1)); return true;
    case kOpLong4: push_long(counted(Field::k4)); return true;
    case kOpBinFloat: {
      Value* value = nodes_.make(ValueKind::kFloat);
      value->real = std::bit_cast<double>(__builtin_bswap64(unsigned_field(8)));
      push(value);
      return true;
    }
    case kOpInt: {  // Python 2 wrote integers between 32 and 64 bits, and older bools, as text.
      const bool is_bool = data_.substr(at_, 2) == "00" || data_.substr(at_, 2) == "01";
      const std::int64_t number = decimal_line();
      push(is_bool ? nodes_.boolean(number != 0) : nodes_.integer(number));
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
    case kOpShortBinUnicode: push_string(counted(Field::k1)); return true;
    case kOpBinUnicode: push_string(counted(Field::k4)); return true;
    case kOpBinUnicode8: push_string(counted(Field::k8)); return true;
    case kOpShortBinString:
    case kOpBinString: {  // Python 2's str: text as torch decodes it, else bytes.
      const std::string_view bytes = counted(op == kOpBinString ? Field::k4 : Field::k1);
      push(nodes_.make_text(is_python_utf8(bytes) ? ValueKind::kString : ValueKind::kBytes, bytes));
      return true;
    }
    case kOpShortBinBytes: push(nodes_.make_text(ValueKind::kBytes, counted(Field::k1))); return true;
    case kOpBinBytes: push(nodes_.make_text(ValueKind::kBytes, counted(Field::k4))); return true;
    case kOpBinBytes8: push(nodes_.make_text(ValueKind::kBytes, counted(Field::k8))); return true;
    case kOpByteArray8: push(nodes_.make_text(ValueKind::kByteArray, counted(Field::k8))); return true;
    default: return false;
  }
}

void Machine::push_string(std::string_view bytes) {
  if (!is_python_utf8(bytes)) fail("a string that is no UTF-8");
  push(nodes_.make_text(ValueKind::kString, bytes));
}

bool Machine::container(std::uint8_t op) {
  switch (op) {
    case kOpMark: marks_.push_back(stack_.size()); return true;
    case kOpEmptyTuple: push(nodes_.empty_tuple()); return true;
    case kOpEmptyList: push(nodes_.make(ValueKind::kList)); return true;
    case kOpEmptyDict: push(nodes_.make(ValueKind::kDict)); return true;
    case kOpEmptySet: push(nodes_.make(ValueKind::kSet)); return true;
    case kOpTuple1: push_tuple(1); return true;
    case kOpTuple2: push_tuple(2); return true;
    case kOpTuple3: push_tuple(3); return true;
    case kOpTuple: push_collection(ValueKind::kTuple); return true;
    case kOpList: push_collection(ValueKind::kList); return true;
    case kOpDict: push_collection(ValueKind::kDict); return true;
    case kOpFrozenSet: push_collection(ValueKind::kFrozenSet); return true;
    case kOpAppend: {
      Value* item = pop();
      append({&item, 1});
      return true;
    }
    case kOpAppends: append(pop_to_mark()); return true;
    case kOpSetItem: {
      need(3);
      const std::array<Value*, 2> pair = {stack_[stack_.size() - 2], stack_.back()};
      release_mark(stack_.size() - 2);
      set_items(pair);
      return true;
    }
    case kOpSetItems: set_items(pop_to_mark()); return true;
    case kOpAddItems: add_items(); return true;
    default: return false;
  }
}

void Machine::push_tuple(std::size_t count) {
  need(count);
  Value* tuple = nodes_.make(ValueKind::kTuple);
  tuple->items = nodes_.fixed(std::span(stack_).last(count));
  stack_.resize(stack_.size() - count);
  push(tuple);
}

void Machine::push_collection(ValueKind kind) {
  const std::span<Value* const> items = pop_to_mark();
  if (kind == ValueKind::kDict && items.size() % 2 != 0) fail("a key without a value");
  Value* made = nodes_.make(kind);
  if (kind == ValueKind::kTuple || kind == ValueKind::kFrozenSet) {
    made->items = nodes_.fixed(items);
  } else {
    nodes_.append(made->items, items);
  }
  if (kind == ValueKind::kDict) note_pairs(*made);
  stack_.resize(stack_.size() - items.size());
  push(made);
}

}  // namespace

}  // namespace shard::pickle
