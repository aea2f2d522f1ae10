/// \file The pages of a large block that is filled at once. Without this, page faults cost as much as the block's use.
#pragma once

#include <cstddef>
#include <span>
#include <thread>
#include <vector>

namespace shard {

/// The size of a huge page, and the alignment of memory that can have only such pages.
constexpr std::size_t kHugePage = std::size_t{2} << 20;

/// Requests huge pages for the whole ones in `bytes` of memory that is about to be written. This is only advice.
/// If the system has no huge pages, or the memory already has pages, nothing changes. The data stays as it is.
void prefer_huge_pages(void* data, std::size_t bytes);

/// Takes the pages of several blocks in a separate thread, while the caller fills all of them from their fronts.
/// Ends early if the result is destroyed, which must be before the blocks are freed. The data stays as it is.
std::jthread take_pages(std::vector<std::span<std::byte>> blocks);

}  // namespace shard
