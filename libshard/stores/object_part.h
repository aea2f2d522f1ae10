/// \file One rank's part of an output in an object store, and what its root and its other ranks exchange about it.
///   Inside libshard/stores only.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "libshard/io/output.h"
#include "libshard/stores/object_store.h"
#include "libshard/stores/upload_parts.h"

namespace shard {

/// The end of the URL of a file. Empty for a single one.
std::string end_of_url(const OutputFile& file, bool is_folder);

/// Small files of the root, which wait in memory for the commit. Shared by its part and its output.
struct KeptFiles {
  std::mutex mutex;
  std::map<std::string, std::vector<std::byte>> content;  ///< By the end of their URL.
};

/// Everything that a rank's part needs, as the root's token carries it.
struct OutputToken {
  std::string note;  ///< The text of an UploadNote.
  bool is_folder = true, is_continued = false;
  std::map<std::string, std::string> completed{};  ///< The ETags of objects that the interrupted run completed.

  std::vector<std::byte> bytes() const;
  static OutputToken of_bytes(std::span<const std::byte> bytes);
};

using PartsByUrl = std::map<std::string, std::vector<StoredPart>>;

/// Reads OutputPart::receipt of an object_part. \throws Error kPeer
PartsByUrl parts_of_receipt(std::span<const std::byte> bytes);

/// \param kept  receives the content of files without an upload
/// \param says  see ObjectOutputOptions \throws Error kPeer  the token is not that of an output
std::unique_ptr<OutputPart> object_part(const ObjectStore& store, std::string destination, OutputToken token,
                                        std::shared_ptr<KeptFiles> kept, const UploadLimits& limits,
                                        std::function<void(const std::string& text)> says);

}  // namespace shard
