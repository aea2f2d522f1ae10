/// \file An Output in an object store. Files become objects, uploaded in parts and invisible before the commit.
///
/// begin: an object beside DST, `DST.shardctl`, is the lock and lists the uploads. It is written only if there is none.
/// Then nothing may exist at DST, and an upload is begun for each file. Parts of 8 MiB and more are sent in any order,
/// by several connections. Small files of the root wait in memory for the commit. commit: the objects are completed
/// only if nothing has their names, the manifest and the file that makes the others a checkpoint (`.metadata`, an
/// index, `latest`) last. Then the lock is removed. If an answer is lost, the name of the run in the object shows
/// whether the request succeeded. Any other end removes uploads and lock. A killed run leaves both. The next run
/// continues (find_left) or, with force, removes them. A store that ignores conditions is refused.
///
/// Between the first object and the last, objects are visible that are not a checkpoint yet. With force, the old marker
/// is removed first (without one, all old objects are), and old objects that are not replaced last. A single object is
/// replaced in one step.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "libshard/io/output.h"
#include "libshard/stores/object_store.h"

namespace shard {

struct ObjectOutputOptions {
  bool force = false;                    ///< Replace an existing DST as a whole.
  bool resume = false;                   ///< find_left will be called: objects of the interrupted run may exist.
  bool is_root = true;                   ///< Check the destination. False on ranks that only write parts.
  std::int64_t memory_bytes = 32 << 20;  ///< For parts that are not sent yet.
  int connections = 8;                   ///< Parts that are sent at one time.
  std::function<void(const std::string& text)> says{};  ///< Receives facts that the user should know. May be empty.
};

/// The size of the parts of an object: 8 MiB, or the smallest multiple of 4 MiB with which it has at most 9,000.
std::int64_t part_bytes_of(std::int64_t object_bytes);

/// Checks the destination and changes nothing yet. \param destination  a URL
/// \throws Error kExists  DST exists and not `force`; or it is one of `sources`, or is inside or contains one
/// \throws Error kInvalidArgument  DST names no object; kResource  unreachable; kUnsupported
/// Ownership: `store` must outlive the result and everything that it creates.
std::unique_ptr<OutputStore> object_output(const ObjectStore& store, const std::string& destination,
                                           const std::vector<std::string>& sources, const ObjectOutputOptions& options);

/// An unfinished upload that a lost run left at a destination.
struct LeftUpload {
  std::string url, name;
  std::int64_t parts = 0, bytes = 0;
};

/// Unfinished uploads of objects at `destination` and below it. \throws Error kResource, kInvalidArgument
std::vector<LeftUpload> left_uploads(const ObjectStore& store, const std::string& destination);
/// Whether the lock of an unfinished output exists.
bool has_upload_lock(const ObjectStore& store, const std::string& destination);
/// Removes the uploads, then the lock. \throws Error kResource
void remove_uploads(const ObjectStore& store, const std::string& destination, const std::vector<LeftUpload>& uploads);

}  // namespace shard
