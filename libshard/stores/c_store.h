/// \file
/// The store of URLs as plain C functions, so that a plug-in's store works in a program with a different C++ library
/// (libshard/ranks/c_group.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "libshard/io/source_store.h"
#include "libshard/ranks/c_group.h"
#include "libshard/ranks/wire.h"
#include "libshard/stores/object_store.h"

namespace shard {

struct CFileStatus {
  int kind;  ///< A FileKind.
  std::int64_t bytes;
  std::uint64_t device, inode;
};

struct CFile {
  void* file;
  CFileStatus status;
  int streams_at_once;
};

struct CRange {
  std::int64_t offset_bytes;
  MutableBytes out;
};

struct CTaker {
  void* place;
  bool (*take)(void* place, ConstBytes bytes);  ///< False: the stream should end. Throws nothing.
};

/// The operations of source_store.h and object_store.h, with their preconditions, errors and threads. They return false
/// on errors. `open_below` is missing, because the program checks relative names itself.
struct StoreFunctions {
  bool (*status)(void* store, ConstBytes path, CFileStatus* status, const ErrorSink* errors);
  /// `names` receives the texts that WireWriter encodes.
  bool (*list)(void* store, ConstBytes folder, const ByteSink* names, const ErrorSink* errors);
  bool (*open)(void* store, ConstBytes path, CFile* made, const ErrorSink* errors);
  bool (*read)(void* file, const CRange* ranges, std::size_t count, const ErrorSink* errors);
  bool (*stream)(void* file, std::int64_t offset_bytes, std::int64_t bytes, const CTaker* taker,
                 const ErrorSink* errors);
  void (*expect_read)(void* file, std::int64_t offset_bytes, std::int64_t bytes);
  /// `request` is the text of an ObjectRequest without its body; `answer` receives that of an ObjectAnswer.
  bool (*ask)(void* store, ConstBytes request, ConstBytes body, const ByteSink* answer, const ErrorSink* errors);
  void (*destroy_file)(void* file);
  void (*destroy_store)(void* store);
};

struct CStore {
  void* store;
  const StoreFunctions* functions;  ///< Valid as long as the library that created it is open.
};

/// Provided by the caller. A store that waits asks whether to stop, and reports why it waits. Called by any thread;
/// throw nothing.
struct StoreListener {
  void* place;
  bool (*is_stopped)(void* place);              ///< True: all requests fail with kInterrupted.
  void (*waits)(void* place, ConstBytes text);  ///< A request is about to be repeated, and why.
};

/// Stored parts within a message.
template <class Wire>
void pass_parts(Wire& wire, Passed<Wire, std::vector<StoredPart>>& parts) {
  wire.list(parts, [&](auto& part) { wire.pass(part.number, part.bytes, part.etag, part.crc32c); });
}

/// Ownership: the receiver calls `destroy_store`, or passes it to from_c.
CStore to_c(std::unique_ptr<UrlFiles> store);
/// The store with these functions. It owns them.
std::unique_ptr<UrlFiles> from_c(const CStore& plain);

}  // namespace shard
