/// \file
/// The dumper's state and its opcodes. Private to this folder.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/parts/pickle/opcodes.h"
#include "formats/parts/pickle/pickle.h"
#include "libshard/core/hash_table.h"

namespace shard::pickle {

struct Dumper::Impl {
  explicit Impl(DumpOptions dump_options) : options(std::move(dump_options)) {
    op(kOpProto);
    byte(static_cast<std::uint64_t>(options.protocol));
  }

  bool modern() const { return options.protocol >= 4; }
  /// Hands what was written to the sink now and then.
  void pass_on() {
    constexpr std::size_t kPiece = 1 << 16;
    if (out.size() >= kPiece && recording == nullptr && options.sink) hand_over();
  }
  void hand_over() {
    options.sink(out);
    out.clear();
  }
  void op(std::uint8_t opcode) { out += static_cast<char>(opcode); }
  void byte(std::uint64_t number) { fixed(number, 1); }
  void fixed(std::uint64_t number, std::size_t bytes) {
    static_assert(std::endian::native == std::endian::little);
    char raw[8];
    std::memcpy(raw, &number, 8);
    out.append(raw, bytes);
  }
  void counted(std::uint8_t op1, std::uint8_t op4, std::uint8_t op8, std::string_view bytes);

  void memoize(std::uint32_t index);
  std::uint32_t memoize() { return memoize(memo_size), memo_size++; }
  void get(std::uint32_t index);
  bool get_known(const Value& value);
  void remember(const Value& value) { values[&value] = memoize(); }

  void value(const Value& value);
  void write(const Value& value);
  void atom(const Value& value);
  void text(const Value& value);
  std::uint32_t string(std::string_view text);      ///< \returns its place in the memo.
  std::uint32_t new_string(std::string_view text);  ///< One that strings will not know.
  void integer(std::int64_t number);
  void long_integer(std::string_view bytes);
  void global(std::string_view module, std::string_view name);
  void bytes(std::string_view text);
  void byte_array(std::string_view text);
  void tuple(std::span<Value* const> items);
  void tuple_value(const Value& value);
  void settle(const Value& value);
  void list_call(std::string_view name, const Value& value);
  void pairs(std::span<Value* const> items);
  void batches(std::span<Value* const> items, std::uint8_t one, std::uint8_t many);
  void set(const Value& value);
  void frozen_set(const Value& value);
  void call(const Value& value);
  void tensor(const Value& value);

  void end_run();  ///< The bytes before an opcode that a replay writes anew are kept.
  void note(Recording::Step::Kind kind, std::uint32_t number);
  void note_put(std::uint32_t index);
  void note_get(std::uint32_t index);

  DumpOptions options;
  Dumper* self = nullptr;
  std::string out;
  int depth = 0;
  std::uint32_t memo_size = 0;
  HashMap<const Value*, std::uint32_t> values;       ///< Places in the memo by node.
  HashMap<std::string_view, std::uint32_t> strings;  ///< Their texts lie in `texts`.
  Arena texts;
  HashMap<std::string, std::uint32_t> globals;
  std::string global_key{};
  Recording* recording = nullptr;
  std::size_t run_begin = 0;          ///< In `out`, of the bytes that are recorded next.
  std::uint32_t recorded_from = 0;    ///< The first place in the memo that belongs to the recording.
  std::vector<std::uint32_t> puts{};  ///< Places in the memo by kPut of the recording or replay.
};

}  // namespace shard::pickle
