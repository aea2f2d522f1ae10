/// \file
/// Opcodes of Python's pickle machine, and the search for a pickle's end. Source: CPython's Lib/pickletools.py.
#pragma once

#include <cstdint>
#include <string_view>

#include "libshard/io/source_store.h"

namespace shard::pickle {

/// The opcodes that the machine executes or the dumper writes, with their bytes.
enum Op : std::uint8_t {
  kOpMark = 0x28,
  kOpEmptyTuple = 0x29,
  kOpStop = 0x2E,
  kOpPop = 0x30,
  kOpPopMark = 0x31,
  kOpDup = 0x32,
  kOpBinBytes = 0x42,
  kOpShortBinBytes = 0x43,
  kOpBinFloat = 0x47,
  kOpInt = 0x49,
  kOpBinInt = 0x4A,
  kOpBinInt1 = 0x4B,
  kOpBinInt2 = 0x4D,
  kOpNone = 0x4E,
  kOpBinPersid = 0x51,
  kOpReduce = 0x52,
  kOpBinString = 0x54,
  kOpShortBinString = 0x55,
  kOpBinUnicode = 0x58,
  kOpEmptyList = 0x5D,
  kOpAppend = 0x61,
  kOpBuild = 0x62,
  kOpGlobal = 0x63,
  kOpDict = 0x64,
  kOpAppends = 0x65,
  kOpGet = 0x67,
  kOpBinGet = 0x68,
  kOpLongBinGet = 0x6A,
  kOpList = 0x6C,
  kOpPut = 0x70,
  kOpBinPut = 0x71,
  kOpLongBinPut = 0x72,
  kOpSetItem = 0x73,
  kOpTuple = 0x74,
  kOpSetItems = 0x75,
  kOpEmptyDict = 0x7D,
  kOpProto = 0x80,
  kOpNewObj = 0x81,
  kOpTuple1 = 0x85,
  kOpTuple2 = 0x86,
  kOpTuple3 = 0x87,
  kOpNewTrue = 0x88,
  kOpNewFalse = 0x89,
  kOpLong1 = 0x8A,
  kOpLong4 = 0x8B,
  kOpShortBinUnicode = 0x8C,
  kOpBinUnicode8 = 0x8D,
  kOpBinBytes8 = 0x8E,
  kOpEmptySet = 0x8F,
  kOpAddItems = 0x90,
  kOpFrozenSet = 0x91,
  kOpNewObjEx = 0x92,
  kOpStackGlobal = 0x93,
  kOpMemoize = 0x94,
  kOpFrame = 0x95,
  kOpByteArray8 = 0x96,
};

/// Python's name of any opcode, including refused ones ("INST"); empty if the byte is not an opcode.
std::string_view op_name(std::uint8_t byte);

/// Finds the end of a pickle without loading it, for files that contain several pickles in a row: the number of bytes
/// of the pickle at `offset`, up to and including STOP. Steps from opcode to opcode. \throws Error kCorruption (kind
/// bad_pickle, truncated)  a byte that is not a Python opcode, or the file ends before
///   STOP.
/// Memory: one window of 64 KiB. Cost: linear; strings with a length are skipped.
std::int64_t scan(const RandomReader& file, std::int64_t offset);

}  // namespace shard::pickle
