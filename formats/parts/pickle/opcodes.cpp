#include "formats/parts/pickle/opcodes.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <vector>

#include "libshard/core/error.h"

namespace shard::pickle {

namespace {

using OpcodeNames = std::array<std::string_view, 256>;

constexpr OpcodeNames make_names() {
  OpcodeNames names{};
  names['('] = "MARK", names[')'] = "EMPTY_TUPLE", names['.'] = "STOP", names['0'] = "POP", names['1'] = "POP_MARK";
  names['2'] = "DUP", names['B'] = "BINBYTES", names['C'] = "SHORT_BINBYTES", names['F'] = "FLOAT";
  names['G'] = "BINFLOAT", names['I'] = "INT", names['J'] = "BININT", names['K'] = "BININT1", names['L'] = "LONG";
  names['M'] = "BININT2", names['N'] = "NONE", names['P'] = "PERSID", names['Q'] = "BINPERSID", names['R'] = "REDUCE";
  names['S'] = "STRING", names['T'] = "BINSTRING", names['U'] = "SHORT_BINSTRING", names['V'] = "UNICODE";
  names['X'] = "BINUNICODE", names[']'] = "EMPTY_LIST", names['a'] = "APPEND", names['b'] = "BUILD";
  names['c'] = "GLOBAL", names['d'] = "DICT", names['e'] = "APPENDS", names['g'] = "GET", names['h'] = "BINGET";
  names['i'] = "INST", names['j'] = "LONG_BINGET", names['l'] = "LIST", names['o'] = "OBJ", names['p'] = "PUT";
  names['q'] = "BINPUT", names['r'] = "LONG_BINPUT", names['s'] = "SETITEM", names['t'] = "TUPLE";
  names['u'] = "SETITEMS", names['}'] = "EMPTY_DICT";
  constexpr std::string_view kFrom80[] = {
      "PROTO",     "NEWOBJ",     "EXT1",        "EXT2",           "EXT4",      "TUPLE1",           "TUPLE2",
      "TUPLE3",    "NEWTRUE",    "NEWFALSE",    "LONG1",          "LONG4",     "SHORT_BINUNICODE", "BINUNICODE8",
      "BINBYTES8", "EMPTY_SET",  "ADDITEMS",    "FROZENSET",      "NEWOBJ_EX", "STACK_GLOBAL",     "MEMOIZE",
      "FRAME",     "BYTEARRAY8", "NEXT_BUFFER", "READONLY_BUFFER"};
  std::size_t byte = 0x80;
  for (const std::string_view name : kFrom80) names[byte++] = name;
  return names;
}

constexpr OpcodeNames kNames = make_names();
static_assert(kNames[kOpByteArray8] == "BYTEARRAY8");

constexpr std::int64_t kWindow = 64 << 10;

/// The argument of an opcode: a fixed number of bytes, a length of `n` bytes and the content, or a number of lines.
struct Argument {
  int fixed = 0, counted = 0, lines = 0;
};

constexpr std::array<Argument, 256> make_arguments() {
  std::array<Argument, 256> arguments{};
  const auto set = [&](std::initializer_list<std::uint8_t> ops, Argument argument) {
    for (const std::uint8_t op : ops) arguments[op] = argument;
  };
  // Without names: EXT1 to EXT4, FLOAT, LONG, PERSID, STRING, UNICODE and INST, which pickle::load refuses.
  set({kOpProto, kOpBinInt1, kOpBinGet, kOpBinPut, 0x82}, {.fixed = 1});
  set({kOpBinInt2, 0x83}, {.fixed = 2});
  set({kOpBinInt, kOpLongBinGet, kOpLongBinPut, 0x84}, {.fixed = 4});
  set({kOpBinFloat, kOpFrame}, {.fixed = 8});
  set({kOpLong1, kOpShortBinUnicode, kOpShortBinString, kOpShortBinBytes}, {.counted = 1});
  set({kOpLong4, kOpBinUnicode, kOpBinString, kOpBinBytes}, {.counted = 4});
  set({kOpBinUnicode8, kOpBinBytes8, kOpByteArray8}, {.counted = 8});
  set({kOpInt, kOpGet, kOpPut, 'F', 'L', 'P', 'S', 'V'}, {.lines = 1});
  set({kOpGlobal, 'i'}, {.lines = 2});
  return arguments;
}

constexpr std::array<Argument, 256> kArguments = make_arguments();

class Scanner {
 public:
  Scanner(const RandomReader& file, std::int64_t offset) : file_(file), begin_(offset), at_(offset) {}

  std::int64_t run() {
    for (;;) {
      const auto op = static_cast<std::uint8_t>(number(1));
      if (op == kOpStop) return at_ - begin_;
      if (op_name(op).empty()) {
        throw Error(ErrorCode::kCorruption, fmt::format("byte {} (0x{:02x}) is not an opcode of Python", at_ - 1, op))
            .in_file(file_.name())
            .of_kind(FindingKind::kBadPickle);
      }
      const Argument argument = kArguments[op];
      skip(static_cast<std::uint64_t>(argument.fixed));
      if (argument.counted > 0) skip(number(argument.counted));
      for (int i = 0; i < argument.lines; ++i) skip_line();
    }
  }

 private:
  [[noreturn]] void fail_short() const {
    throw Error(ErrorCode::kCorruption, fmt::format("the file ends inside the pickle at {}", begin_))
        .in_file(file_.name())
        .of_kind(FindingKind::kTruncated);
  }

  /// The bytes from the current position on, at least one.
  std::string_view ahead() {
    if (at_ >= file_.size()) fail_short();
    if (at_ < window_begin_ || at_ >= window_begin_ + static_cast<std::int64_t>(window_.size())) {
      window_.resize(static_cast<std::size_t>(std::min(kWindow, file_.size() - at_)));
      file_.read_at(at_, std::as_writable_bytes(std::span(window_)));
      window_begin_ = at_;
    }
    return std::string_view(window_.data(), window_.size()).substr(static_cast<std::size_t>(at_ - window_begin_));
  }

  std::uint64_t number(int bytes) {
    std::uint64_t value = 0;
    for (int i = 0; i < bytes; ++i, ++at_) {
      value |= static_cast<std::uint64_t>(static_cast<unsigned char>(ahead().front())) << (8 * i);
    }
    return value;
  }

  void skip(std::uint64_t bytes) {
    if (bytes > static_cast<std::uint64_t>(file_.size() - at_)) fail_short();
    at_ += static_cast<std::int64_t>(bytes);
  }

  void skip_line() {
    for (;;) {
      const std::string_view text = ahead();
      const std::size_t end = text.find('\n');
      at_ += static_cast<std::int64_t>(std::min(end, text.size() - 1) + 1);
      if (end != std::string_view::npos) return;
    }
  }

  const RandomReader& file_;
  std::int64_t begin_, at_, window_begin_ = 0;
  std::vector<char> window_;
};

}  // namespace

std::string_view op_name(std::uint8_t byte) { return kNames[byte]; }

std::int64_t scan(const RandomReader& file, std::int64_t offset) { return Scanner(file, offset).run(); }

}  // namespace shard::pickle
