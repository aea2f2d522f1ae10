/// \file UploadNote: the object beside an unfinished output in an object store. It is the output's lock, and the record
///   from which a later run continues. Inside libshard/stores only.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace shard {

struct UploadNote {
  struct File {
    std::string path;  ///< The end of its URL, after that of the output.
    std::int64_t bytes = 0;
    std::int64_t part_bytes = 0;
    bool has_checksums = false;  ///< The store computes CRC-32Cs of the parts, and requires them at the end.
    std::string upload{};        ///< The name of its upload; empty: it has none, because the commit writes it at once.
  };
  std::string run;     ///< The name of the run that began; objects carry it.
  std::string holder;  ///< Changes with each run that continues.
  std::vector<File> files{};

  std::string text() const;
};

/// Nothing if the text is not a whole note.
std::optional<UploadNote> parse_upload_note(std::string_view text);

/// The URL of the note of an output.
std::string note_url(const std::string& destination);

}  // namespace shard
