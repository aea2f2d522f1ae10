#include "libshard/core/huge_pages.h"

#include <sys/mman.h>

#include <memory>

namespace shard {

void prefer_huge_pages(void* data, std::size_t bytes) {
  if (std::align(kHugePage, kHugePage, data, bytes) == nullptr) return;
  ::madvise(data, bytes / kHugePage * kHugePage, MADV_HUGEPAGE);
}

}  // namespace shard
