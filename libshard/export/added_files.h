/// \file
/// Files that are copied into the output beside those of the format: a model's config, its tokenizer.
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

/// A writer that writes what `inner` does, and then `files`, which are committed with the rest. Each is cloned where
/// `reflink_disk` (may be null) can. \pre inner writes a folder, and none of its files has the name of an added one
/// Its begin_file \throws Error kCorruption  a content has another size by then
/// Ownership: `reflink_disk` must outlive the writer.
std::unique_ptr<Writer> with_added_files(std::unique_ptr<Writer> inner, std::vector<AddedFile> files,
                                         LocalDisk* reflink_disk);

/// The content of a small file, which can be read wherever the file itself can no longer be.
/// \throws Error kCorruption  it is larger than 256 MiB
std::shared_ptr<const RandomReader> held_in_memory(const RandomReader& file);
/// A text as the content of a file. `name` is for messages.
std::shared_ptr<const RandomReader> held_in_memory(std::string_view text, const std::string& name);

}  // namespace shard
