#include "formats/parts/pickle/opcodes.h"

#include <array>

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

}  // namespace

std::string_view op_name(std::uint8_t byte) { return kNames[byte]; }

}  // namespace shard::pickle
