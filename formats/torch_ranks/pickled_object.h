/// \file
/// Python objects inside pickles, by class and attribute names: what a call says, whatever module and torch wrote it.
///
/// What is found wrong is thrown as Error kCorruption of kind bad_pickle; `what` names the place in messages.
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

namespace shard::torch_ranks {

/// "a pickled <what> is malformed: <why>".
Error malformed(std::string_view what, const std::string& why);

/// The same error, its message led by the tensor's name, unless it knows one already.
Error named(const Error& error, std::string_view tensor);

/// The bare name of the class whose object a call makes ("ShardMetadata", also for a nested one that is reached by
/// getattr); empty for anything else.
std::string_view class_name(const Value& value);

/// An attribute that BUILD gave the object, from its dict or from that of its slots; null where there is none.
Value* attribute(const Value& object, std::string_view name);
/// \throws Error  `object` is none of class `name`.
void need_class(const Value& object, std::string_view name);
/// \throws Error  there is no such attribute.
Value& need(const Value& object, std::string_view name);

std::int64_t natural(const Value& value, std::string_view what);
std::string_view string(const Value& value, std::string_view what);
bool boolean(const Value& value, std::string_view what);
/// The items of a list, a tuple or a torch.Size.
std::span<Value* const> sequence(const Value& value, std::string_view what);
std::vector<std::int64_t> naturals(const Value& value, std::string_view what);
/// Natural numbers in such a sequence. \throws Error  also for more than kMaxDims.
Dims dims(Arena& arena, const Value& value, std::string_view what);
/// \throws Error kUnsupported  a dtype that shardctl does not have.
DType dtype(const Value& value, std::string_view what);

/// What `torch._tensor._rebuild_from_type_v2(_rebuild_wrapper_subclass, class, arguments, state)` says.
struct Subclass {
  std::string_view name;  ///< Of the class: "DTensor", "ShardedTensor", "AsyncCollectiveTensor".
  Value* arguments = nullptr;
  Value* state = nullptr;
};

/// The class's name in a call that rebuilds a tensor subclass of torch.distributed; empty for anything else.
std::string_view subclass_name(const Value& value);
/// \pre subclass_name(value) is not empty.
Subclass subclass(const Value& value);

/// The arguments of _rebuild_wrapper_subclass: of the whole tensor.
struct Wrapper {
  DType dtype{};
  Dims shape;
  bool requires_grad = false;
  std::string_view device = "cpu";  ///< With its index: "cuda:1".
};
Wrapper wrapper(Arena& arena, const Subclass& subclass);

/// "cuda:1" of a torch.device or a string.
std::string_view device(const Value& value, Arena& arena, std::string_view what);

}  // namespace shard::torch_ranks
