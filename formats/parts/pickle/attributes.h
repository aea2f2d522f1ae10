/// \file
/// Typed attributes of pickled objects: the attributes that a call gives its object, in the spelling of any module and
/// torch version.
///
/// Faults are thrown as Error kCorruption of kind bad_pickle. `what` names the value in messages: "cannot read the
/// pickled <what>: it is not a natural number".
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "libshard/core/arena.h"
#include "libshard/core/dtype.h"
#include "libshard/core/error.h"
#include "libshard/core/value.h"

namespace shard::pickle {

/// "cannot read the pickled <what>: <why>".
Error malformed(std::string_view what, const std::string& why);

/// The same error with the tensor's name before its message, unless it names one already.
Error named(const Error& error, std::string_view tensor);

/// The class name, without its module, of the object that a call creates ("ShardMetadata", also for a nested class that
/// getattr names). Empty for any other value.
std::string_view class_name(const Value& value);

/// The value under a key of a small mapping; null if the key is missing, or if the value is not a mapping.
/// \throws Error  the mapping has more than 256 entries, because the search is linear and may be repeated often.
Value* entry(const Value& mapping, std::string_view key);
/// An attribute in the state that BUILD gave an object: a dict, or (dict or None, dict of slots). Null if it is
/// missing. \throws Error  as entry.
Value* state_attribute(const Value& state, std::string_view name);
/// An attribute of an object; null if it is missing or the object has no state.
Value* attribute(const Value& object, std::string_view name);
/// \throws Error  `object` is not of class `name`.
void need_class(const Value& object, std::string_view name);
/// \throws Error  the attribute is missing.
Value& need(const Value& object, std::string_view name);

std::int64_t natural(const Value& value, std::string_view what);
std::string_view string(const Value& value, std::string_view what);
bool boolean(const Value& value, std::string_view what);
/// The keys and values of a mapping, alternating.
std::span<Value*> mapping(const Value& value, std::string_view what);
/// The items of a list, a tuple or a torch.Size.
std::span<Value* const> sequence(const Value& value, std::string_view what);
std::vector<std::int64_t> naturals(const Value& value, std::string_view what);
/// The natural numbers of such a sequence. \throws Error  also if there are more than kMaxDims.
Dims dims(Arena& arena, const Value& value, std::string_view what);
/// The dtype that a global torch.<name> names. \throws Error kUnsupported  a dtype that shardctl does not support.
DType dtype(const Value& value, std::string_view what);

}  // namespace shard::pickle
