/// \file
/// Calls between a program and a plug-in whose C++ libraries may differ, as those of the program as one file (LLVM's)
/// and of LibTorch (GNU's) do. So what crosses is C alone: numbers, addresses, functions. No object of the library
/// does, and no exception: the side that is called hands an error over as the bytes that WireWriter makes of it.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "libshard/ranks/group.h"

namespace shard {

struct PlainBytes {
  const std::byte* data;
  std::size_t count;
};
struct PlainRoom {
  std::byte* data;
  std::size_t count;
};

/// Of the side that calls: where the other puts the bytes of what it answers, or of the error of a call that fails.
struct ByteSink {
  void* place;
  void (*put)(void* place, PlainBytes bytes);  ///< Copies them. Throws nothing.
};
using ErrorSink = ByteSink;

/// A sink that fills `bytes`, which lives longer; empty where the memory is lacking.
ByteSink sink_into(Bytes& bytes);

/// The side that is called: runs `body` and puts what it throws (as_error) into the sink. Returns whether it threw
/// nothing.
bool put_error(const ErrorSink* errors, const std::function<void()>& body) noexcept;

/// The side that calls: hands a sink to `function`, which returns whether all went well.
/// \throws Error  the one that was put there
void throw_error(const std::function<bool(const ErrorSink* errors)>& function);
/// The same for a function of a table, whose last argument is the sink.
template <class... Parameters, class... Arguments>
void call(bool (*function)(Parameters...), Arguments... arguments) {
  throw_error([&](const ErrorSink* errors) { return function(arguments..., errors); });
}

/// Pieces as C has them, and back. The bytes stay where they are.
std::vector<PlainBytes> to_plain(std::span<const std::span<const std::byte>> pieces);
std::vector<PlainRoom> to_plain(std::span<const std::span<std::byte>> pieces);
std::vector<std::span<const std::byte>> from_plain(std::span<const PlainBytes> pieces);
std::vector<std::span<std::byte>> from_plain(std::span<const PlainRoom> pieces);

}  // namespace shard
