/// \file
/// Numbers, texts and errors as bytes between ranks. The first messages verify that both ends are the same build.
/// Decoding is checked anyway.
///
/// A message of several fields has one function for both directions, so that no field is read in the wrong order:
///
///     template <class Wire>
///     void pass(Wire& wire, Passed<Wire, File>& file) {
///       wire.pass(file.path, file.bytes);
///       wire.pass_below(file.kind, kKinds);
///       wire.list(file.parts, [&](auto& part) { pass(wire, part); });
///     }
#pragma once

#include <chrono>
#include <concepts>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "libshard/core/bytes.h"
#include "libshard/core/error.h"
#include "libshard/ranks/group.h"

namespace shard {

/// Appends values to a message. A WireReader must read the same types in the same order.
class WireWriter {
 public:
  void number(std::int64_t value);
  void real(double value);
  void text(std::string_view value);
  void error(const Error& value);
  Bytes take() { return std::move(bytes_); }

  /// Numbers other than enumerators, texts, durations, and lists and optionals of them.
  template <class... Fields>
  void pass(const Fields&... fields) {
    (put(fields), ...);
  }
  /// A number or enumerator in [0, end).
  template <class Number>
  void pass_below(const Number& value, std::int64_t /*end*/) {
    number(static_cast<std::int64_t>(value));
  }
  /// `each` passes an item.
  template <class List, class Each>
  void list(const List& items, Each each) {
    number(static_cast<std::int64_t>(items.size()));
    for (const auto& item : items) each(item);
  }
  template <class Value, class Each>
  void optional(const std::optional<Value>& value, Each each) {
    put(value.has_value());
    if (value) each(*value);
  }

 private:
  template <std::integral Number>
  void put(Number value) {
    number(static_cast<std::int64_t>(value));
  }
  void put(double value) { real(value); }
  void put(std::string_view value) { text(value); }
  void put(std::chrono::milliseconds value) { number(value.count()); }
  template <class Value>
  void put(const std::vector<Value>& values) {
    list(values, [this](const Value& value) { put(value); });
  }
  template <class Value>
  void put(const std::optional<Value>& value) {
    optional(value, [this](const Value& present) { put(present); });
  }

  Bytes bytes_;
};

/// Ownership: the bytes must outlive it. The values that it returns are copies.
class WireReader {
 public:
  explicit WireReader(std::span<const std::byte> bytes) : rest_(bytes) {}
  /// \throws Error kPeer  here and below: the bytes are truncated or contain an impossible value.
  std::int64_t number();
  std::int64_t number_below(std::int64_t end);  ///< In [0, end).
  double real();
  std::string text();
  Error error();
  bool at_end() const { return rest_.empty(); }

  // The counterparts of a WireWriter's functions. Lists and optionals are empty before.

  template <class... Fields>
  void pass(Fields&... fields) {
    (get(fields), ...);
  }
  template <class Number>
  void pass_below(Number& value, std::int64_t end) {
    value = static_cast<Number>(number_below(end));
  }
  template <class List, class Each>
  void list(List& items, Each each) {
    for (std::int64_t left = number(); left > 0; --left) each(items.emplace_back());
  }
  template <class Value, class Each>
  void optional(std::optional<Value>& value, Each each) {
    if (number_below(2) != 0) each(value.emplace());
  }

 private:
  template <std::integral Number>
  void get(Number& value) {
    const std::int64_t passed = number();
    value = static_cast<Number>(passed);
    if (static_cast<std::int64_t>(value) != passed) fail_malformed();
  }
  void get(double& value) { value = real(); }
  void get(std::string& value) { value = text(); }
  void get(std::chrono::milliseconds& value) { value = std::chrono::milliseconds(number()); }
  template <class Value>
  void get(std::vector<Value>& values) {
    list(values, [this](Value& value) { get(value); });
  }
  template <class Value>
  void get(std::optional<Value>& value) {
    optional(value, [this](Value& present) { get(present); });
  }
  [[noreturn]] static void fail_malformed();
  std::span<const std::byte> take(std::uint64_t count);
  std::span<const std::byte> rest_;
};

/// The type of a value that `Wire` passes: const for a WireWriter.
template <class Wire, class Value>
using Passed = std::conditional_t<std::is_same_v<Wire, WireWriter>, const Value, Value>;

/// A message of one value. Its function `pass` is declared in the namespace of the type, not in an unnamed one.
template <class Value>
Bytes to_message(const Value& value) {
  WireWriter out;
  pass(out, value);
  return out.take();
}
/// \throws Error kPeer  as WireReader
template <class Value>
Value from_message(std::span<const std::byte> bytes) {
  WireReader in(bytes);
  Value value;
  pass(in, value);
  return value;
}

/// Collective. `write` makes the message of each rank except 0. `read` gets them on rank 0, in the order of the ranks.
template <class Write, class Read>
void send_to_first(Group& group, const Write& write, const Read& read) {
  if (group.size() == 1) return;
  WireWriter own;
  if (group.rank() > 0) write(own);
  for (const Bytes& message : gather(group, own.take(), 0)) {
    if (message.empty()) continue;
    WireReader from(message);
    read(from);
  }
}

}  // namespace shard
