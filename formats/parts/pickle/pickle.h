/// \file
/// Python pickles, read symbolically and written.
///
/// The machine knows the opcodes of protocols 0x80 0x02 to 0x05 that data needs. It can call nothing, because there is
/// nothing to call: globals stay names, REDUCE and NEWOBJ become kCall nodes. Opcodes INST, OBJ, EXT*, text PERSID and
/// out-of-band buffers are refused. Source of the format: CPython's Lib/pickletools.py.
///
/// Limits are checked before each allocation: a length against the bytes left, a count against what was pushed, memo
/// indices against a growing table no larger than the number of opcodes, values against the arena's budget.
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
  /// Asked once for each global; false refuses it (kCorruption, naming module and name).
  std::function<bool(std::string_view module, std::string_view name)> allow;
  bool opaque_unknown = false;  ///< Globals that `allow` refuses are read as foreign_holder.h says.
  bool suggest_opaque = false;  ///< The error where a global is refused suggests Remedy::kOpaqueGlobals.
  bool integer_ids =
      false;  ///< Persistent ids are integers, as ranks number tensors to each other; else torch's tuples.
  std::vector<Value*>* persistent_ids = nullptr;  ///< Receives every kPersid, in the order of the pickle.
  /// Receives what kOpaque values stand for: the global, or the call with all that was added to it. Parts of it may be
  /// opaque in turn. One whose state was set twice is left out.
  HashMap<const Value*, Value*>* behind_opaque = nullptr;
};

/// Reads one pickle from the front of `data`. String and bytes values point into `data`: the caller keeps it alive
/// (Arena::adopt). `consumed`, when given, receives the number of bytes up to and with STOP.
/// Calls with which protocol 2 spells bytes, bytearrays, sets and frozensets become those. The persistent id
/// ('module', class, file, source), with which torch before 1.6 saved a module's class, becomes the class.
/// \throws Error kCorruption (kind bad_pickle, forbidden_global)  with the byte position.
/// \throws Error kCorruption (kind bad_header)  the arena's budget is spent.
/// \throws Error kUnsupported  a protocol above 5.
/// None, bools and equal integers may share a node: do not change them in place. Cost: linear, no recursion.
Value* load(Arena& arena, std::span<const std::byte> data, const LoadOptions& options, std::size_t* consumed = nullptr);

/// The globals that a torch-made file may name: torch's own weights_only list, ShardedTensor, DTensor and DCP classes
/// under every module root, collections, argparse.Namespace, pathlib, numpy scalars, dtypes and arrays, and the plain
/// classes and enums that DeepSpeed and Megatron-core put into checkpoints.
bool is_known_global(std::string_view module, std::string_view name);

/// The enum classes among those of DeepSpeed, Megatron-core and Python: their members may have names of any case.
bool is_known_enum(std::string_view module, std::string_view name);

/// Receives a pickle in pieces, in order.
using Sink = std::function<void(std::string_view piece)>;

struct DumpOptions {
  int protocol = 2;  ///< 2 (torch.save) or 4 (.metadata).
  Sink sink{};       ///< Receives the bytes as they come; empty: finish() returns them all.
  /// Called for each kTensor: writes what stands for it. Gets the dumper to write values through.
  std::function<void(class Dumper&, const Value&)> tensor;
  /// What a kOpaque value stands for, see LoadOptions::behind_opaque; null: the value is refused. Empty: all are.
  std::function<const Value*(const Value&)> behind_opaque{};
};

/// The opcodes of a value, to be written again with other tensors in it: many values of one pickle differ in nothing
/// else, and making each of them would take most of the time and memory. Valid for the Dumper that recorded it.
struct Recording {
  struct Step {
    enum Kind : std::uint32_t { kBytes, kPut, kGet, kGetOwn, kTensor } kind;
    std::uint32_t
        number;  ///< kBytes: the end of the run in `bytes`. kGet: a place in the memo. kGetOwn: of which kPut.
  };
  std::string bytes;
  std::vector<Step> steps;
};

/// Writes values as a pickle that means the same. Values met twice are memoized, so sharing survives; module names
/// `builtins` become `__builtin__` at protocol 2, as CPython does.
class Dumper {
 public:
  explicit Dumper(DumpOptions options);
  ~Dumper();
  void value(const Value& value);
  /// The same, and remembers what was written. \pre of the value's parts that other values share (containers, calls)
  ///   and of its strings and classes each was written before.
  Recording record(const Value& value);
  /// Writes a recorded value, with `tensors` in the order in which its own were met. Its parts are new ones.
  void replay(const Recording& recording, std::span<const Value* const> tensors);
  /// Pieces, for DumpOptions::tensor: the usual opcodes, strings and globals memoized by text.
  void global(std::string_view module, std::string_view name);
  void string(std::string_view text);
  /// A string that was not written before, and will not be but by get: the memo's texts need not hold it. \returns its
  /// place in the memo.
  std::uint32_t new_string(std::string_view text);
  void get(std::uint32_t place);
  void integer(std::int64_t number);
  void boolean(bool value);
  void none();
  void empty_tuple();
  void mark();
  void tuple();                  ///< A tuple of everything since the mark.
  void op(std::uint8_t opcode);  ///< REDUCE, BINPERSID, ...
  /// STOP. \returns the bytes, or nothing where a sink has received them. \pre called once, last.
  std::string finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace shard::pickle
