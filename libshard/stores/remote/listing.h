/// \file Checks the answers of servers that list files. No entry is trusted. Inside libshard/stores/remote only.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "libshard/stores/remote/place.h"

namespace shard::stores {

/// Collects the pages of a listing and bounds them: at most 1 million entries and 256 MiB of names, and on average at
/// least 100 entries per page.
class ListingPages {
 public:
  explicit ListingPages(std::string prefix) : prefix_(std::move(prefix)) {}

  /// A page of S3's ListObjectsV2, with keys encoded as in URLs.
  /// \returns the token of the next page; empty after the last one.
  /// \throws Error kCorruption  malformed, an entry outside the prefix, a negative size, a token that repeats, or too
  ///   many entries
  std::string add_s3_page(std::string_view xml);
  /// A page of a hub's tree: files below `prefix`, whose content `revision` fixes. \throws Error kCorruption
  void add_hub_page(std::string_view json);
  /// \throws Error kCorruption  the pages have too few entries
  void count_page();

  /// Sorted, without markers of folders. \throws Error kCorruption  a file appears twice
  Listing take();

 private:
  void add(Object object);
  void charge(const std::string& name);

  const std::string prefix_;
  std::string token_;
  std::int64_t pages_ = 0, entries_ = 0, bytes_ = 0;
  Listing listing_;
};

/// Whether a list of many pages has so few entries that it may never end.
bool may_be_endless(std::int64_t pages, std::int64_t entries);

/// The code of an S3 error answer, or of one of STS; empty if there is none.
std::string s3_error_code(std::string_view xml);

}  // namespace shard::stores
