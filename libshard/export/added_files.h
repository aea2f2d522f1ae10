/// \file Files that are copied into the output in addition to those of the format: a model's config, its tokenizer.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "libshard/checkpoint/writer.h"
#include "libshard/io/local_disk.h"

namespace shard {

struct AddedFile {
  std::string path;        ///< In the output, parts separated by '/'.
  std::int64_t bytes = 0;  ///< Size of its content.
  /// Opens the content. Called when the file is written, so that any number of files needs one descriptor at a time.
  std::function<std::shared_ptr<const RandomReader>()> open{};
};

/// A writer that does the same as `inner`, and then writes `files`, which are committed with the rest. Each is cloned
/// if `reflink_disk` (may be null) supports it. \pre inner writes a folder, and none of its files has the name of an
/// added one
/// Its begin_file \throws Error kCorruption  the size of a content has changed
/// Ownership: `reflink_disk` must outlive the writer.
std::unique_ptr<Writer> with_added_files(std::unique_ptr<Writer> inner, std::vector<AddedFile> files,
                                         LocalDisk* reflink_disk);

/// Reads the content of a small file into memory, so that it is available even if the file no longer is.
/// \throws Error kCorruption  it is larger than 256 MiB
std::shared_ptr<const RandomReader> held_in_memory(const RandomReader& file);
/// A text as the content of a file. `name` is for messages.
std::shared_ptr<const RandomReader> held_in_memory(std::string_view text, const std::string& name);

}  // namespace shard
