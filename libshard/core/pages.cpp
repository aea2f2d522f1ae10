#include "libshard/core/pages.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <memory>
#include <stop_token>
#include <utility>

namespace shard {

void prefer_huge_pages(void* data, std::size_t bytes) {
  if (std::align(kHugePage, kHugePage, data, bytes) == nullptr) return;
  ::madvise(data, bytes / kHugePage * kHugePage, MADV_HUGEPAGE);
}

std::jthread take_pages(std::vector<std::span<std::byte>> blocks) {
  return std::jthread([blocks = std::move(blocks)](const std::stop_token& stop) {
    constexpr std::size_t kSteps = 64;
    constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE of Linux 5.14, which older headers lack.
    const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    for (std::size_t step = 0; step < kSteps; ++step) {
      for (const std::span<std::byte> block : blocks) {
        if (stop.stop_requested()) return;
        const auto first = reinterpret_cast<std::uintptr_t>(block.data());
        const std::uintptr_t begin = (first + block.size() * step / kSteps + page - 1) / page * page;
        const std::uintptr_t end = (first + block.size() * (step + 1) / kSteps) / page * page;
        if (end > begin) ::madvise(reinterpret_cast<void*>(begin), end - begin, kPopulateWrite);
      }
    }
  });
}

}  // namespace shard
