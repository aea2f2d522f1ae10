/// \file
/// Reads Python pickles symbolically, and writes them.
///
/// The machine executes the data opcodes of protocols 2 (0x80 0x02) to 5. It cannot call anything: globals stay names,
/// and REDUCE and NEWOBJ become kCall nodes. It refuses the opcodes INST, OBJ, EXT*, text PERSID and out-of-band
/// buffers. Source of the format: CPython's Lib/pickletools.py.
///
/// Every allocation is checked first: a length against the bytes left, a count against the values pushed, memo indices
/// against a growing table no larger than the number of opcodes, values against the arena's budget.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "libshard/core/arena.h"
#include "libshard/core/hash_table.h"
#include "libshard/core/value.h"

namespace shard::pickle {

struct LoadOptions {
  std::string file;  ///< For messages.
  /// Called once for each global. If it returns false, the global is refused (kCorruption, with module and name).
  std::function<bool(std::string_view module, std::string_view name)> allow;
  bool opaque_unknown = false;  ///< Globals that `allow` refuses are read as foreign_holder.h describes.
  bool suggest_opaque = false;  ///< The error for a refused global suggests Remedy::kOpaqueGlobals.
  bool integer_ids = false;     ///< Persistent ids are integers, as in messages of ranks, not torch's tuples.
  std::vector<Value*>* persistent_ids = nullptr;  ///< Receives every kPersid, in the order of the pickle.
  /// Receives the original of each kOpaque: the global, or the call with everything that was added to it. Its parts may
  /// be opaque again. An object whose state was set twice has no entry.
  HashMap<const Value*, Value*>* behind_opaque = nullptr;
};

/// Reads one pickle from the front of `data`. String and bytes values point into `data`, which the caller must keep
/// alive (Arena::adopt). `consumed`, if given, receives the number of bytes up to and including STOP. Calls with which
/// protocol 2 spells bytes, bytearrays, sets and frozensets become values of those types. The persistent id ('module',
/// class, file, source), with which torch before 1.6 saved a module's class, becomes the class. None, bools and equal
/// integers may share a node: do not change them in place.
/// \throws Error kCorruption (kind bad_pickle, forbidden_global)  with the byte position.
/// \throws Error kCorruption (kind bad_header)  the arena's budget is exhausted.
/// \throws Error kUnsupported  a protocol above 5.
/// Cost: linear, no recursion.
Value* load(Arena& arena, std::span<const std::byte> data, const LoadOptions& options, std::size_t* consumed = nullptr);

/// The globals that may occur in a file that torch wrote: torch's own weights_only list, ShardedTensor, DTensor and DCP
/// classes under every module root, collections, argparse.Namespace, pathlib, numpy scalars, dtypes and arrays, and the
/// plain classes and enums that DeepSpeed and Megatron-Core store in checkpoints.
bool is_known_global(std::string_view module, std::string_view name);

/// The enum classes of DeepSpeed, Megatron-Core and Python among them. Their members may have names in any case.
bool is_known_enum(std::string_view module, std::string_view name);

/// Receives a pickle in pieces, in order.
using Sink = std::function<void(std::string_view piece)>;

struct DumpOptions {
  int protocol = 2;  ///< 2 (torch.save) or 4 (.metadata).
  Sink sink{};       ///< Receives the bytes as they are written. If empty, finish() returns them all.
  /// Called for each kTensor; writes its replacement through the given dumper.
  std::function<void(class Dumper&, const Value&)> tensor;
  /// The original of a kOpaque, see LoadOptions::behind_opaque; null: the value is refused. If empty, all are refused.
  std::function<const Value*(const Value&)> behind_opaque{};
};

/// The opcodes of a value, to be written again with different tensors. Many values of one pickle differ only in their
/// tensors, and encoding each of them would take most of the time and memory. Valid for the Dumper that recorded it.
struct Recording {
  struct Step {
    enum Kind : std::uint32_t { kBytes, kPut, kGet, kGetOwn, kTensor } kind;
    /// kBytes: the end of the run in `bytes`. kGet: a memo number. kGetOwn: the index of the kPut.
    std::uint32_t number;
  };
  std::string bytes;
  std::vector<Step> steps;
};

/// Writes values as a pickle with the same meaning. A repeated value is memoized, so sharing survives. Protocol 2
/// writes the module `builtins` as `__builtin__`, as CPython does.
class Dumper {
 public:
  explicit Dumper(DumpOptions options);
  ~Dumper();
  void value(const Value& value);
  /// Writes the value and records its opcodes. \pre the parts of the value that other values share (containers, calls),
  /// its strings and its classes were all written before.
  Recording record(const Value& value);
  /// Writes a recorded value, with `tensors` in the order in which the recording had its own. Its parts are new values.
  void replay(const Recording& recording, std::span<const Value* const> tensors);
  /// Building blocks for DumpOptions::tensor: the usual opcodes. Strings and globals are memoized by text.
  void global(std::string_view module, std::string_view name);
  void string(std::string_view text);
  /// Writes a string that was not written before and will only be repeated by get, so its text is not stored. \returns
  /// its number in the memo.
  std::uint32_t new_string(std::string_view text);
  void get(std::uint32_t place);
  void integer(std::int64_t number);
  void boolean(bool value);
  void none();
  void empty_tuple();
  void mark();
  void tuple();                  ///< A tuple of everything since the mark.
  void op(std::uint8_t opcode);  ///< REDUCE, BINPERSID, ...
  /// Writes STOP. \returns the bytes, or nothing if a sink received them. \pre called once, last.
  std::string finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace shard::pickle
