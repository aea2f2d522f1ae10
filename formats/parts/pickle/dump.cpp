#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cassert>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/parts/pickle/opcodes.h"
#include "formats/parts/pickle/pickle.h"
#include "libshard/core/error.h"
#include "libshard/core/hash_table.h"

namespace shard::pickle {

/// The dumper's state and its opcodes.
struct Dumper::Impl {
  explicit Impl(DumpOptions dump_options) : options(std::move(dump_options)) {
    op(kOpProto);
    byte(static_cast<std::uint64_t>(options.protocol));
  }

  bool modern() const { return options.protocol >= 4; }
  /// Passes the written bytes to the sink from time to time.
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
  std::uint32_t string(std::string_view text);      ///< \returns its number in the memo.
  std::uint32_t new_string(std::string_view text);  ///< Writes a string that is not added to `strings`.
  void integer(std::int64_t number);
  void long_integer(std::string_view bytes);
  void global(std::string_view module, std::string_view name);
  void bytes(std::string_view text);
  void byte_array(std::string_view text);
  void tuple(std::span<Value* const> items);
  void tuple_value(const Value& value);
  void resolve(const Value& value);
  void list_call(std::string_view name, const Value& value);
  void pairs(std::span<Value* const> items);
  void batches(std::span<Value* const> items, std::uint8_t one, std::uint8_t many);
  void set(const Value& value);
  void frozen_set(const Value& value);
  void call(const Value& value);
  void tensor(const Value& value);

  void end_run();  ///< Ends a run of recorded bytes before an opcode that a replay writes itself.
  void note(Recording::Step::Kind kind, std::uint32_t number);
  void note_put(std::uint32_t index);
  void note_get(std::uint32_t index);

  DumpOptions options;
  Dumper* self = nullptr;
  std::string out;
  int depth = 0;
  std::uint32_t memo_size = 0;
  HashMap<const Value*, std::uint32_t> values;       ///< Memo numbers by node.
  HashMap<std::string_view, std::uint32_t> strings;  ///< Memo numbers by text; the keys are stored in `texts`.
  Arena texts;
  HashMap<std::string, std::uint32_t> globals;
  std::string global_key{};
  Recording* recording = nullptr;
  std::size_t run_begin = 0;          ///< The start of the next recorded run, in `out`.
  std::uint32_t recorded_from = 0;    ///< The first memo number that belongs to the recording.
  std::vector<std::uint32_t> puts{};  ///< Memo numbers by kPut of the recording or replay.
};

namespace {

constexpr std::size_t kBatch = 1000;  // The batch size of CPython's pickler.

std::string_view old_builtin(std::string_view name) {
  if (name == "str") return "unicode";
  if (name == "range") return "xrange";
  return name == "int" ? "long" : name;
}

/// Protocol 2 has no opcode for bytes, so each byte becomes the character with its number.
std::string latin1_to_utf8(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size());
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x80) {
      text += c;
    } else {
      text += static_cast<char>(0xC0 | (byte >> 6));
      text += static_cast<char>(0x80 | (byte & 0x3F));
    }
  }
  return text;
}

[[noreturn]] void refuse(const std::string& what) { throw Error(ErrorCode::kUnsupported, what); }

}  // namespace

void Dumper::Impl::counted(std::uint8_t op1, std::uint8_t op4, std::uint8_t op8, std::string_view bytes) {
  if (op1 != 0 && bytes.size() <= 0xFF) {
    op(op1);
    byte(bytes.size());
  } else if (bytes.size() <= 0xFFFFFFFF) {
    op(op4);
    fixed(bytes.size(), 4);
  } else {
    if (op8 == 0) refuse("a text of more than 4 GiB needs a newer pickle protocol than 2");
    op(op8);
    fixed(bytes.size(), 8);
  }
  out += bytes;
}

void Dumper::Impl::memoize(std::uint32_t index) {
  end_run();
  if (modern()) {
    op(kOpMemoize);
  } else {
    op(index <= 0xFF ? kOpBinPut : kOpLongBinPut);
    fixed(index, index <= 0xFF ? 1 : 4);
  }
  note_put(index);
  pass_on();
}

void Dumper::Impl::get(std::uint32_t index) {
  end_run();
  op(index <= 0xFF ? kOpBinGet : kOpLongBinGet);
  fixed(index, index <= 0xFF ? 1 : 4);
  note_get(index);
  pass_on();
}

bool Dumper::Impl::get_known(const Value& value) {
  const std::uint32_t* known = values.find(&value);
  if (!known) return false;
  get(*known);
  return true;
}

void Dumper::Impl::value(const Value& value) {
  if (++depth > kMaxValueDepth) refuse(fmt::format("cannot write values nested deeper than {}", kMaxValueDepth));
  write(value);
  --depth;
}

void Dumper::Impl::write(const Value& value) {
  switch (value.kind) {
    case ValueKind::kGlobal:
      return global(value.module(), value.text());
    case ValueKind::kString:
      return text(value);
    case ValueKind::kTuple:
      return tuple_value(value);
    case ValueKind::kList:
      if (get_known(value)) return;
      op(kOpEmptyList);
      remember(value);  // Before the items, which may contain the list itself.
      return batches(value.items(), kOpAppend, kOpAppends);
    case ValueKind::kDict:
      if (get_known(value)) return;
      op(kOpEmptyDict);
      remember(value);
      return pairs(value.items());
    case ValueKind::kSet:
      return get_known(value) ? void() : set(value);
    case ValueKind::kFrozenSet:
      return get_known(value) ? void() : frozen_set(value);
    case ValueKind::kCall:
      return get_known(value) ? void() : call(value);
    case ValueKind::kPersid:
      if (get_known(value)) return;
      this->value(*value.items()[0]);
      op(kOpBinPersid);
      return remember(value);
    case ValueKind::kTensor:
      if (get_known(value)) return;
      return tensor(value);
    case ValueKind::kBytes:
    case ValueKind::kByteArray:
      if (get_known(value)) return;
      value.kind == ValueKind::kBytes ? bytes(value.text()) : byte_array(value.text());
      return remember(value);
    case ValueKind::kOpaque:
      if (const Value* behind = options.behind_opaque ? options.behind_opaque(value) : nullptr) {
        return this->value(*behind);
      }
      refuse(fmt::format("cannot write an object of {}.{}: it is opaque", value.module(), value.text()));
    default:
      return atom(value);
  }
}

void Dumper::Impl::atom(const Value& value) {
  switch (value.kind) {
    case ValueKind::kBool:
      return op(value.boolean() ? kOpNewTrue : kOpNewFalse);
    case ValueKind::kInt:
      return integer(value.number);
    case ValueKind::kLong:
      return long_integer(value.text());
    case ValueKind::kFloat:
      op(kOpBinFloat);
      return fixed(__builtin_bswap64(std::bit_cast<std::uint64_t>(value.real)), 8);
    default:
      return op(kOpNone);
  }
}

void Dumper::Impl::integer(std::int64_t number) {
  if (number >= 0 && number <= 0xFF) {
    op(kOpBinInt1);
    fixed(static_cast<std::uint64_t>(number), 1);
  } else if (number >= 0 && number <= 0xFFFF) {
    op(kOpBinInt2);
    fixed(static_cast<std::uint64_t>(number), 2);
  } else if (number == static_cast<std::int32_t>(number)) {
    op(kOpBinInt);
    fixed(static_cast<std::uint64_t>(number), 4);
  } else {
    const auto raw = std::bit_cast<std::array<char, 8>>(number);
    std::size_t size = 8;
    const auto sign = [&](std::size_t i) { return static_cast<signed char>(raw[i]) < 0 ? '\xFF' : '\0'; };
    while (raw[size - 1] == sign(size - 2)) --size;
    long_integer({raw.data(), size});
  }
}

void Dumper::Impl::long_integer(std::string_view bytes) { counted(kOpLong1, kOpLong4, 0, bytes); }

std::uint32_t Dumper::Impl::new_string(std::string_view text) {
  counted(modern() ? kOpShortBinUnicode : 0, kOpBinUnicode, modern() ? kOpBinUnicode8 : 0, text);
  return memoize();
}

std::uint32_t Dumper::Impl::string(std::string_view text) {
  if (const std::uint32_t* known = strings.find(text)) {
    get(*known);
    return *known;
  }
  return strings.try_emplace(texts.copy(text), new_string(text)).value;
}

/// Writes a text. A long text is remembered by its node, so that it is not hashed at each use.
void Dumper::Impl::text(const Value& value) {
  constexpr std::size_t kShort = 256;
  if (value.text().size() > kShort && get_known(value)) return;
  const std::uint32_t place = string(value.text());
  if (value.text().size() > kShort) values[&value] = place;
}

void Dumper::Impl::global(std::string_view module, std::string_view name) {
  if (!modern() && module == "builtins") module = "__builtin__", name = old_builtin(name);
  if (!modern() && module == "copyreg") module = "copy_reg";
  global_key.assign(module).append("\n").append(name).append("\n");
  if (const std::uint32_t* known = globals.find(global_key)) return get(*known);
  if (modern()) {
    string(module);
    string(name);
    op(kOpStackGlobal);
  } else {
    op(kOpGlobal);
    out += global_key;
  }
  globals.try_emplace(global_key, memoize());
}

void Dumper::Impl::bytes(std::string_view text) {
  if (modern()) return counted(kOpShortBinBytes, kOpBinBytes, kOpBinBytes8, text);
  global("_codecs", "encode");
  string(latin1_to_utf8(text));
  string("latin1");
  op(kOpTuple2);
  op(kOpReduce);
}

void Dumper::Impl::byte_array(std::string_view text) {
  global("builtins", "bytearray");
  bytes(text);
  op(kOpTuple1);
  op(kOpReduce);
}

void Dumper::Impl::tuple(std::span<Value* const> items) {
  constexpr std::uint8_t kSmall[] = {kOpEmptyTuple, kOpTuple1, kOpTuple2, kOpTuple3};
  const bool is_small = items.size() < std::size(kSmall);
  if (!is_small) op(kOpMark);
  for (const Value* item : items) value(*item);
  op(is_small ? kSmall[items.size()] : std::uint8_t{kOpTuple});
}

void Dumper::Impl::tuple_value(const Value& value) {
  if (value.items().empty()) return op(kOpEmptyTuple);
  if (get_known(value)) return;
  tuple(value.items());
  resolve(value);
}

/// Finishes an object that is created after its parts. If a part refers back to it, the part has already added it to
/// the memo, and that object is used instead.
void Dumper::Impl::resolve(const Value& value) {
  if (!values.contains(&value)) return remember(value);
  op(kOpPop);
  get_known(value);
}

void Dumper::Impl::batches(std::span<Value* const> items, std::uint8_t one, std::uint8_t many) {
  while (!items.empty()) {
    const std::span<Value* const> batch = items.first(std::min(items.size(), kBatch));
    items = items.subspan(batch.size());
    const bool is_single = batch.size() == 1 && one != 0;
    if (!is_single) op(kOpMark);
    for (const Value* item : batch) value(*item);
    op(is_single ? one : many);
    pass_on();
  }
}

void Dumper::Impl::pairs(std::span<Value* const> items) {
  while (!items.empty()) {
    const std::span<Value* const> batch = items.first(std::min(items.size(), 2 * kBatch));
    items = items.subspan(batch.size());
    if (batch.size() > 2) op(kOpMark);
    for (const Value* item : batch) value(*item);
    op(batch.size() > 2 ? kOpSetItems : kOpSetItem);
  }
}

void Dumper::Impl::list_call(std::string_view name, const Value& value) {
  global("builtins", name);
  op(kOpEmptyList);
  batches(value.items(), kOpAppend, kOpAppends);
  op(kOpTuple1);
  op(kOpReduce);
  resolve(value);
}

void Dumper::Impl::set(const Value& value) {
  if (!modern()) return list_call("set", value);
  op(kOpEmptySet);
  remember(value);
  batches(value.items(), 0, kOpAddItems);
}

void Dumper::Impl::frozen_set(const Value& value) {
  if (!modern()) return list_call("frozenset", value);
  op(kOpMark);
  for (const Value* item : value.items()) this->value(*item);
  op(kOpFrozenSet);
  resolve(value);
}

void Dumper::Impl::call(const Value& value) {
  const CallExtra none;
  const CallExtra& extra = value.extra() != nullptr ? *value.extra() : none;
  this->value(*value.callee());
  tuple(value.items());
  if (extra.kwargs != nullptr) {
    if (!modern()) refuse("an object made with keyword arguments needs a newer pickle protocol than 2");
    this->value(*extra.kwargs);
    op(kOpNewObjEx);
  } else {
    op(value.is_new ? kOpNewObj : kOpReduce);
  }
  if (values.contains(&value)) return resolve(value);
  remember(value);  // Before later additions, which may refer to the object.
  batches(extra.list_items, kOpAppend, kOpAppends);
  pairs(extra.dict_items);
  if (value.state() == nullptr) return;
  this->value(*value.state());
  op(kOpBuild);
}

Dumper::Dumper(DumpOptions options) : impl_(std::make_unique<Impl>(std::move(options))) { impl_->self = this; }
Dumper::~Dumper() = default;
void Dumper::value(const Value& value) { impl_->value(value); }
void Dumper::global(std::string_view module, std::string_view name) { impl_->global(module, name); }
void Dumper::string(std::string_view text) { impl_->string(text); }
std::uint32_t Dumper::new_string(std::string_view text) { return impl_->new_string(text); }
void Dumper::get(std::uint32_t place) { impl_->get(place); }
void Dumper::integer(std::int64_t number) { impl_->integer(number); }
void Dumper::boolean(bool value) { impl_->op(value ? kOpNewTrue : kOpNewFalse); }
void Dumper::none() { impl_->op(kOpNone); }
void Dumper::empty_tuple() { impl_->op(kOpEmptyTuple); }
void Dumper::mark() { impl_->op(kOpMark); }
void Dumper::tuple() { impl_->op(kOpTuple); }
void Dumper::op(std::uint8_t opcode) { impl_->op(opcode); }

std::string Dumper::finish() {
  impl_->op(kOpStop);
  if (impl_->options.sink) impl_->hand_over();
  return std::move(impl_->out);
}

void Dumper::Impl::end_run() {
  if (recording == nullptr || run_begin == out.size()) return;
  recording->bytes.append(out, run_begin);
  note(Recording::Step::kBytes, static_cast<std::uint32_t>(recording->bytes.size()));
}

void Dumper::Impl::note(Recording::Step::Kind kind, std::uint32_t number) {
  recording->steps.push_back({kind, number});
  run_begin = out.size();
}

void Dumper::Impl::note_put(std::uint32_t index) {
  if (recording == nullptr) return;
  puts.push_back(index);
  note(Recording::Step::kPut, 0);
}

void Dumper::Impl::note_get(std::uint32_t index) {
  if (recording == nullptr) return;
  if (index < recorded_from) return note(Recording::Step::kGet, index);
  const auto own = std::ranges::lower_bound(puts, index);
  assert(own != puts.end() && *own == index);
  note(Recording::Step::kGetOwn, static_cast<std::uint32_t>(own - puts.begin()));
}

void Dumper::Impl::tensor(const Value& value) {
  if (!options.tensor) {
    throw Error(ErrorCode::kUnsupported, "cannot write a tensor here: only plain values are possible");
  }
  end_run();
  Recording* const recorded = std::exchange(recording, nullptr);  // A replay writes its own tensors.
  options.tensor(*self, value);
  remember(value);
  recording = recorded;
  if (recording != nullptr) note(Recording::Step::kTensor, 0);
}

Recording Dumper::record(const Value& value) {
  Recording made;
  impl_->recording = &made;
  impl_->run_begin = impl_->out.size();
  impl_->recorded_from = impl_->memo_size;
  impl_->puts.clear();
  impl_->value(value);
  impl_->end_run();
  impl_->recording = nullptr;
  return made;
}

void Dumper::replay(const Recording& recording, std::span<const Value* const> tensors) {
  Impl& to = *impl_;
  to.puts.clear();
  std::size_t begin = 0, next = 0;
  for (const auto& [kind, number] : recording.steps) {
    switch (kind) {
      case Recording::Step::kBytes:
        to.out.append(recording.bytes, begin, number - begin);
        begin = number;
        break;
      case Recording::Step::kPut:
        to.puts.push_back(to.memoize());
        break;
      case Recording::Step::kGet:
        to.get(number);
        break;
      case Recording::Step::kGetOwn:
        to.get(to.puts[number]);
        break;
      case Recording::Step::kTensor:
        to.value(*tensors[next++]);
        break;
    }
  }
}

}  // namespace shard::pickle
