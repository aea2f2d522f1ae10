/// \file
/// Typed attributes of pickled objects: what a call says of the object it makes, whatever module and torch wrote it.
///
/// What is wrong is thrown as Error kCorruption of kind bad_pickle. `what` names the value in messages: "cannot read
/// the pickled <what>: it is not a natural number".
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

/// The same error, its message led by the tensor's name, unless it names one already.
Error named(const Error& error, std::string_view tensor);

/// The bare name of the class whose object a call makes ("ShardMetadata", also for a nested class that getattr names);
/// empty for anything else.
std::string_view class_name(const Value& value);

/// The value under a key of a small mapping; null where there is none, or where the value is not a mapping.
/// \throws Error  the mapping has more than 256 entries: the search is linear, and one mapping may have many names.
Value* entry(const Value& mapping, std::string_view key);
/// An attribute in the state that BUILD gave an object: a dict, or (dict or None, dict of slots); null where there is
/// none. \throws Error  as entry.
Value* state_attribute(const Value& state, std::string_view name);
/// The same of an object; null also where it has no state.
Value* attribute(const Value& object, std::string_view name);
/// \throws Error  `object` is not of class `name`.
void need_class(const Value& object, std::string_view name);
/// \throws Error  there is no such attribute.
Value& need(const Value& object, std::string_view name);

std::int64_t natural(const Value& value, std::string_view what);
std::string_view string(const Value& value, std::string_view what);
bool boolean(const Value& value, std::string_view what);
/// The keys and values of a mapping, in turn.
std::span<Value*> mapping(const Value& value, std::string_view what);
/// The items of a list, a tuple or a torch.Size.
std::span<Value* const> sequence(const Value& value, std::string_view what);
std::vector<std::int64_t> naturals(const Value& value, std::string_view what);
/// Natural numbers in such a sequence. \throws Error  also for more than kMaxDims.
Dims dims(Arena& arena, const Value& value, std::string_view what);
/// The dtype that a global torch.<name> names. \throws Error kUnsupported  one that shardctl does not have.
DType dtype(const Value& value, std::string_view what);

}  // namespace shard::pickle
