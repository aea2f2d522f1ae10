/// \file
/// A Group as plain C functions, so that plug-ins and programs built with different C++ libraries can share one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "libshard/ranks/group.h"

namespace shard {

// Calls between a program and a plug-in whose C++ libraries may differ, because the one-file program uses LLVM's and
// LibTorch uses GNU's. Only C crosses: numbers, addresses, functions. Errors cross as the bytes that WireWriter
// encodes. Exceptions and objects of the C++ library do not.

struct ConstBytes {
  const std::byte* data;
  std::size_t count;
};

struct MutableBytes {
  std::byte* data;
  std::size_t count;
};

/// Provided by the caller: receives the bytes of the answer, or of the error of a failed call.
struct ByteSink {
  void* place;
  void (*put)(void* place, ConstBytes bytes);  ///< Copies them. Throws nothing.
};

using ErrorSink = ByteSink;

/// A sink that fills `bytes`, which must outlive it. Empty if there is not enough memory.
ByteSink sink_into(Bytes& bytes);

/// For the called side: runs `body` and writes an exception (as_error) into the sink. Returns whether there was none.
bool put_error(const ErrorSink* errors, const std::function<void()>& body) noexcept;

/// For the calling side: passes a sink to `function`, which returns whether it succeeded.
/// \throws Error  the one in the sink
void throw_error(const std::function<bool(const ErrorSink* errors)>& function);

/// Does the same for a function of a table, whose last argument is the sink.
template <class... Parameters, class... Arguments>
void call(bool (*function)(Parameters...), Arguments... arguments) {
  throw_error([&](const ErrorSink* errors) { return function(arguments..., errors); });
}

/// Destroys an object of this side when the other one no longer needs it.
template <class Served>
void serve_destroy(void* address) {
  delete static_cast<Served*>(address);
}

/// An object of the other side, by its address. Ownership: calls `destroy` at its end.
class ImportedObject {
 public:
  ImportedObject(void* address, void (*destroy)(void*)) : address_(address), destroy_(destroy) {}
  ImportedObject(const ImportedObject&) = delete;
  ImportedObject& operator=(const ImportedObject&) = delete;
  ~ImportedObject() { destroy_(address_); }

  void* get() const { return address_; }

 private:
  void* const address_;
  void (*const destroy_)(void*);
};

/// Converts pieces to C and back. The bytes are not copied.
std::vector<ConstBytes> to_c(std::span<const std::span<const std::byte>> pieces);
std::vector<MutableBytes> to_c(std::span<const std::span<std::byte>> pieces);
std::vector<std::span<const std::byte>> from_c(std::span<const ConstBytes> pieces);
std::vector<std::span<std::byte>> from_c(std::span<const MutableBytes> pieces);

/// The operations of group.h by their names, with its preconditions, errors and threads. `group` is CGroup::group.
/// Operations that can fail return false on errors.
struct GroupFunctions {
  bool (*barrier)(void* group, const ErrorSink* errors);
  bool (*broadcast)(void* group, MutableBytes data, int root, const ErrorSink* errors);
  bool (*all_gather)(void* group, ConstBytes own, MutableBytes all, const ErrorSink* errors);
  /// `to` and `from` have as many pieces as there are ranks.
  bool (*exchange)(void* group, const ConstBytes* to, const MutableBytes* from, const ErrorSink* errors);
  bool (*waits_for)(void* group, int* rank, std::int64_t* milliseconds);  ///< False: for none.
  void (*set_timeout)(void* group, std::int64_t milliseconds);
  void (*abort)(void* group);
  void (*destroy)(void* group);
};

struct CGroup {
  void* group;
  const GroupFunctions* functions;  ///< Valid as long as the library that created it is open.
  int rank, size;
  const char* backend;  ///< Valid as long as the group.
};

/// Ownership: the receiver calls `destroy`, or passes it to from_c.
CGroup to_c(std::unique_ptr<Group> group);
/// Does the same for a group that the caller keeps and that outlives the result.
CGroup to_c(Group& group);
/// The group whose functions they are. It owns them.
std::unique_ptr<Group> from_c(const CGroup& imported);

}  // namespace shard
