/// \file
/// The pickle machine: a stack, marks and a memo. Only for use inside this folder; see pickle.h.
#pragma once

#include <fmt/format.h>

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/parts/pickle/foreign_holder.h"
#include "formats/parts/pickle/nodes.h"
#include "formats/parts/pickle/pickle.h"
#include "libshard/core/bytes.h"
#include "libshard/core/error.h"
#include "libshard/core/hash_table.h"
#include "libshard/core/value_walk.h"

namespace shard::pickle {

/// The machine for one pickle. Every opcode checks its operands before it removes them from the stack.
/// Cost: linear in the input; no recursion.
class Machine {
 public:
  Machine(Arena& arena, std::span<const std::byte> data, const LoadOptions& options)
      : data_(as_text(data)), options_(options), arena_(arena), nodes_(arena) {}

  Value* run();
  std::size_t position() const { return at_; }
  [[noreturn]] void fail(const std::string& what, ErrorCode code = ErrorCode::kCorruption) const;
  Error failure(const std::string& what, ErrorCode code) const;

 private:
  // Bytes of the input.
  std::string_view take(std::size_t count) {
    if (count > data_.size() - at_) fail_short(count);
    const std::string_view taken = data_.substr(at_, count);
    at_ += count;
    return taken;
  }
  std::uint64_t unsigned_field(std::size_t bytes) {
    static_assert(std::endian::native == std::endian::little);
    std::uint64_t number = 0;
    std::memcpy(&number, take(bytes).data(), bytes);
    return number;
  }
  std::string_view counted(std::size_t length_bytes) { return take(unsigned_field(length_bytes)); }
  [[noreturn]] void fail_short(std::size_t count) const;
  std::string_view line();
  std::int64_t decimal(std::string_view text) const;

  // The stack.
  void push(Value* value) { stack_.push_back(value); }
  void push_again(Value* value);  ///< Pushes a value that was pushed before.
  std::size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }
  void need(std::size_t count) const {
    if (stack_.size() - floor() < count) fail_shallow(count);
  }
  [[noreturn]] void fail_shallow(std::size_t count) const;
  std::size_t marked();  ///< Removes the last mark. \returns the number of values above it, which stay.
  std::span<Value* const> last(std::size_t count) const { return std::span(stack_).last(count); }
  void drop(std::size_t count) { stack_.resize(stack_.size() - count); }
  Value& below(std::size_t count) const {  ///< The value below the last `count` values.
    need(count + 1);
    return *stack_[stack_.size() - count - 1];
  }

  using Step = void (*)(Machine&);
  using Steps = std::array<Step, 256>;  ///< By opcode.
  struct Row {
    std::uint8_t op;
    Step step;
  };
  template <std::size_t kRows>
  static consteval Steps steps_of(const Row (&rows)[kRows]) {
    Steps steps;
    steps.fill([](Machine& machine) { machine.refuse(); });
    for (const Row& row : rows) steps[row.op] = row.step;
    return steps;
  }
  static const Steps kSteps;  ///< A table, so that a step costs one indirect call.

  [[noreturn]] void refuse();  ///< Refuses the current opcode.
  void check_frame(std::uint64_t length) const;

  void push_float();
  void push_int_line();
  void push_long(std::string_view bytes);
  void push_string(std::string_view bytes);
  void push_old_string(std::string_view bytes);

  void push_collection(ValueKind kind, std::size_t count);
  void append(std::size_t count);
  void set_items(std::size_t count);
  void add_items(std::size_t count);

  void check_keys(Value& owner, std::span<Value* const> values, std::size_t step);
  void check_key(Value& owner, const Value& key);
  void refuse_tensor_keys(const Value& root);

  void put(std::uint64_t index);
  void get(std::uint64_t index);
  void pop_value_or_mark();

  void push_global(std::string_view module, std::string_view name);
  [[noreturn]] void forbid(std::string_view module, std::string_view name) const;
  void global_line();
  void stack_global();
  void persistent_id();
  void check_persistent_id(const Value& id) const;
  void reduce();
  void new_object(Value* kwargs);  ///< `kwargs` is null if there are none.
  void new_object_with_keywords();
  void push_call(bool is_new, Value* kwargs);
  Value* call_behind(const Value& opaque);
  void check_getattr(const Value& arguments) const;
  Value* plain_data(const Value& callee, std::span<Value* const> arguments);
  Value* ordered_dict(Value& callee, std::span<Value* const> arguments);
  Value* latin1_bytes(ValueKind kind, std::string_view text);
  void build();

  // Subclasses of built-in types (load_objects.cpp).
  Value* plain_subclass(const Value& callee, std::span<Value*> arguments);
  void expect_items(const Value& opaque, const Value& callee);
  bool begin_filling(Value& target, ValueKind kind);
  bool is_subclass(const Value& target) const;
  void become_opaque(Value& target);
  bool take_state(Value& target, Value& state);
  static std::vector<Value*> elements_of(const Value& state, const Value& parameters, std::span<Value* const> keys,
                                         std::size_t count);
  bool fill_with_parameters(Value& target, Value& state);

  // Values that contain tensors (load.cpp).
  void note_part(Value& owner, Value& part);
  void note_parts(Value& owner, std::span<Value* const> parts);
  void note_storage(Value& owner, Value& storage);
  void make_holder(Value& owner, Value& storage);
  void resolve_open_parts();

  std::string_view data_;
  const LoadOptions& options_;
  Arena& arena_;
  Nodes nodes_;
  std::size_t at_ = 0;     ///< The offset of the next byte.
  std::size_t op_at_ = 0;  ///< The offset of the current opcode, for messages.
  std::uint64_t protocol_ = 0;
  std::vector<Value*> stack_;
  std::vector<std::size_t> marks_;  ///< The stack's sizes at the marks.
  std::vector<Value*> memo_;        ///< Null for unused indices.
  std::size_t memo_count_ = 0;
  HashMap<std::string, Value*> globals_;  ///< By "module\nname".
  std::vector<Value*> paired_;            ///< Dicts and calls that received keys.
  /// The values of classes outside the list that are, or may become, values of a built-in type, with their classes. A
  /// kOpaque among them has received nothing yet. With a null class it stays opaque.
  HashMap<const Value*, const Value*> subclasses_;
  /// For each value that contains tensors, one of their storages.
  HashMap<const Value*, Value*> storages_;
  /// Values that may still receive tensors, or contain such a value.
  HashSet<const Value*> open_;
  std::vector<std::pair<const Value*, Value*>> open_parts_;  ///< A value in `open_`, and a value that contains it.
  VisitedSet checked_tuples_;                                ///< Keys, and the tuples inside them.
  /// The values that received a tensor as a key, with the opcode's offset.
  std::vector<std::pair<Value*, std::size_t>> tensor_keyed_;
};

}  // namespace shard::pickle
