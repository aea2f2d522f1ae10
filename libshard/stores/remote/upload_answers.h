/// \file The answers of servers about uploads, checked like those of listing.h. Names of root elements differ between
///   servers and are ignored. Inside libshard/stores/remote only.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "libshard/stores/object_store.h"

namespace shard::stores {

/// The name of a new upload. \throws Error kCorruption  the answer has none
std::string upload_name(std::string_view xml);

/// The point where a list of parts or of uploads continues; empty after the last page.
struct NextPage {
  std::string marker{}, upload{};
  bool is_last() const { return marker.empty(); }
};

/// Adds a page of ListParts: at most 10,000 parts, with rising numbers. \throws Error kCorruption
NextPage add_parts_page(std::string_view xml, std::vector<StoredPart>& parts);

/// Adds a page of ListMultipartUploads, with keys in place of URLs: those below `prefix`, at most 100,000.
/// \throws Error kCorruption
NextPage add_uploads_page(std::string_view xml, const std::string& prefix, std::vector<BucketObject>& uploads);

/// The ETag, and the checksum if there is one, of a copied part. \throws Error kCorruption  the answer has no ETag
StoredPart copied_part(std::string_view xml);

/// The body of CompleteMultipartUpload.
std::string complete_text(const std::vector<StoredPart>& parts);

}  // namespace shard::stores
