#include "libshard/io/cached_bytes.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "libshard/core/digest.h"
#include "libshard/core/processor.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace shard {

namespace {

constexpr std::size_t kLeastMapped = 2 << 20;    // Mapping fewer bytes takes longer than it saves.
constexpr std::size_t kProbeStep = 1 << 20;      // Bytes per look whether they are cached.
constexpr std::size_t kSummedBlock = 256 << 10;  // Bytes that the second-level cache has from their CRC to their copy.

thread_local sigjmp_buf* fault_place = nullptr;  // Not null while this thread reads mapped pages.
struct sigaction previous_action {};

/// Ends the copy of this thread. If there is none, or a process sent the signal, calls the handler that was set before.
void on_bus_error(int number, siginfo_t* info, void* context) {
  const bool is_sent = info->si_code <= 0;  // By a process. A fault happens again after this function, without it.
  if (fault_place != nullptr && !is_sent) siglongjmp(*fault_place, 1);
  if ((previous_action.sa_flags & static_cast<int>(SA_RESETHAND)) != 0) signal(number, SIG_DFL);
  if ((previous_action.sa_flags & SA_SIGINFO) != 0) return previous_action.sa_sigaction(number, info, context);
  if (previous_action.sa_handler == SIG_IGN && is_sent) return;
  if (previous_action.sa_handler != SIG_IGN && previous_action.sa_handler != SIG_DFL) {
    return previous_action.sa_handler(number);
  }
  signal(number, SIG_DFL);
  if (is_sent) raise(number);
}

bool set_handler() {
  struct sigaction action {};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
  return ::sigaction(SIGBUS, &action, &previous_action) == 0;
}

/// Whether a fault of this thread calls on_bus_error.
bool can_catch_faults() {
  static const bool is_set = set_handler();
  struct sigaction now {};
  sigset_t blocked;
  return is_set && ::sigaction(SIGBUS, nullptr, &now) == 0 && (now.sa_flags & SA_SIGINFO) != 0 &&
         now.sa_sigaction == on_bus_error && ::pthread_sigmask(SIG_BLOCK, nullptr, &blocked) == 0 &&
         sigismember(&blocked, SIGBUS) == 0;
}

/// Looks at one byte of each kProbeStep, and at the last one.
bool has_pages(int descriptor, std::int64_t offset_bytes, std::size_t bytes) {
  const auto has = [&](std::size_t at) {
    std::byte byte{};
    const iovec one{&byte, 1};
    return ::preadv2(descriptor, &one, 1, offset_bytes + static_cast<std::int64_t>(at), RWF_NOWAIT) == 1;
  };
  for (std::size_t at = 0; at < bytes; at += kProbeStep) {
    if (!has(at)) return false;
  }
  return has(bytes - 1);
}

/// Pages of a file. Ownership: unmaps them.
class MappedPages {
 public:
  MappedPages(int descriptor, std::int64_t offset_bytes, std::size_t bytes)
      : skipped_(static_cast<std::size_t>(offset_bytes % ::sysconf(_SC_PAGESIZE))), bytes_(skipped_ + bytes) {
    data_ =
        ::mmap(nullptr, bytes_, PROT_READ, MAP_SHARED, descriptor, offset_bytes - static_cast<std::int64_t>(skipped_));
  }
  ~MappedPages() {
    if (is_mapped()) ::munmap(data_, bytes_);
  }
  MappedPages(const MappedPages&) = delete;
  MappedPages& operator=(const MappedPages&) = delete;

  bool is_mapped() const { return data_ != MAP_FAILED; }
  std::span<const std::byte> bytes() const {
    return std::span(static_cast<const std::byte*>(data_), bytes_).subspan(skipped_);
  }

 private:
  std::size_t skipped_, bytes_;
  void* data_;
};

/// Copies whole lines. \pre `to` is aligned to a line
using CopyLines = void (*)(const std::byte* from, std::byte* to, std::size_t bytes);
constexpr std::size_t kLine = 64;

#if defined(__x86_64__)
void copy_lines_by_16(const std::byte* from, std::byte* to, std::size_t bytes) {
  const auto* in = reinterpret_cast<const __m128i*>(from);
  auto* out = reinterpret_cast<__m128i*>(to);
  for (const auto* const end = in + bytes / sizeof(__m128i); in < end; in += 2, out += 2) {
    const __m128i first = _mm_loadu_si128(in), second = _mm_loadu_si128(in + 1);
    _mm_stream_si128(out, first);
    _mm_stream_si128(out + 1, second);
  }
  _mm_sfence();
}

[[gnu::target("avx2")]] void copy_lines_by_32(const std::byte* from, std::byte* to, std::size_t bytes) {
  const auto* in = reinterpret_cast<const __m256i*>(from);
  auto* out = reinterpret_cast<__m256i*>(to);
  for (const auto* const end = in + bytes / sizeof(__m256i); in < end; in += 2, out += 2) {
    const __m256i first = _mm256_loadu_si256(in), second = _mm256_loadu_si256(in + 1);
    _mm256_stream_si256(out, first);
    _mm256_stream_si256(out + 1, second);
  }
  _mm_sfence();
}

CopyLines copy_lines() { return has_avx2() ? copy_lines_by_32 : copy_lines_by_16; }
#else
CopyLines copy_lines() {
  return [](const std::byte* from, std::byte* to, std::size_t bytes) { std::memcpy(to, from, bytes); };
}
#endif

void copy_past_caches(std::span<const std::byte> from, std::byte* to) {
  const std::size_t head = std::min(from.size(), -reinterpret_cast<std::uintptr_t>(to) % kLine);
  const std::size_t lines = (from.size() - head) / kLine * kLine;
  std::memcpy(to, from.data(), head);
  copy_lines()(from.data() + head, to + head, lines);
  const std::size_t done = head + lines;
  std::memcpy(to + done, from.data() + done, from.size() - done);
}

/// The copy itself. A fault leaves it in the middle, so it has no destructors.
std::uint32_t copy_blocks(std::span<const std::byte> from, std::byte* to, bool is_summed) {
  if (!is_summed) copy_past_caches(from, to);
  std::uint32_t crc = 0;
  for (std::size_t at = 0; is_summed && at < from.size(); at += kSummedBlock) {
    const std::span<const std::byte> block = from.subspan(at, std::min(kSummedBlock, from.size() - at));
    crc = crc32(block, crc);
    copy_past_caches(block, to + at);
  }
  return crc;
}

bool copy_until_fault(std::span<const std::byte> from, std::byte* to, std::uint32_t* crc) {
  sigjmp_buf place;
  if (sigsetjmp(place, 0) != 0) {
    fault_place = nullptr;
    return false;
  }
  fault_place = &place;
  const std::uint32_t sum = copy_blocks(from, to, crc != nullptr);
  fault_place = nullptr;
  if (crc != nullptr) *crc = sum;
  return true;
}

}  // namespace

bool copy_cached_bytes(int descriptor, std::int64_t offset_bytes, std::span<std::byte> out, std::uint32_t* crc) {
  if (out.size() < kLeastMapped || !can_catch_faults() || !has_pages(descriptor, offset_bytes, out.size()))
    return false;
  const MappedPages pages(descriptor, offset_bytes, out.size());
  if (!pages.is_mapped() || !copy_until_fault(pages.bytes(), out.data(), crc)) return false;
  struct stat info {};  // Behind the end of a file, the rest of its last page reads as zeros.
  return ::fstat(descriptor, &info) == 0 && info.st_size - offset_bytes >= std::ssize(out);
}

}  // namespace shard
