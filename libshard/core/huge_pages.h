/// \file Memory in huge pages: a large block that is filled at once costs as much in faults of small pages as in its
/// use.
#pragma once

#include <cstddef>

namespace shard {

/// The size of a huge page, and the alignment of memory that can have only such pages.
constexpr std::size_t kHugePage = std::size_t{2} << 20;

/// Requests huge pages for the whole ones in `bytes` of memory that is about to be written. Only advice: where the
/// system has none, or the memory already has pages, nothing changes. The data stays as it is.
void prefer_huge_pages(void* data, std::size_t bytes);

}  // namespace shard
