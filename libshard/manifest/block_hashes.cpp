#include "libshard/manifest/block_hashes.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include "libshard/manifest/manifest.h"

namespace shard {

namespace {

constexpr std::size_t kMostEarly = 64;  ///< The limit on separate early spans in a block.
constexpr std::int64_t kRead = 64 << 10;

}  // namespace

BlockHashes::BlockHashes(std::int64_t bytes, HashAlgorithm algorithm)
    : bytes_(bytes),
      algorithm_(algorithm),
      states_(static_cast<std::size_t>(block_count(bytes)), State::kFresh),
      hashes_(states_.size() * hex_digits(algorithm), '0') {}

/// Hashes the piece if it is next in its block. \returns true if the caller has nothing left to do for it.
bool BlockHashes::add_next(std::int64_t offset, std::span<const std::byte> piece, FileWriter& file) {
  const std::int64_t block = offset / kManifestBlock;
  BegunPtr begun;
  {
    const std::scoped_lock lock(mutex_);
    const Turn turn = claim(block, offset, offset + std::ssize(piece), begun);
    if (turn != Turn::kNow) return turn == Turn::kNever;
  }
  hash(block, *begun, piece, file);
  return true;
}

void BlockHashes::add_written(std::int64_t offset, std::span<const std::byte> piece, FileWriter& file) {
  const std::int64_t block = offset / kManifestBlock, end = offset + std::ssize(piece);
  BegunPtr begun;
  {
    const std::scoped_lock lock(mutex_);
    const Turn turn = claim(block, offset, end, begun);
    if (turn == Turn::kLater) keep_early(block, *begun, offset, end);
    if (turn != Turn::kNow) return;
  }
  hash(block, *begun, piece, file);
}

/// Decides whether the caller hashes [begin, end) now. Until the caller has finished, no other thread hashes the block.
BlockHashes::Turn BlockHashes::claim(std::int64_t block, std::int64_t begin, std::int64_t end, BegunPtr& begun) {
  State& state = states_[static_cast<std::size_t>(block)];
  if (state == State::kLost || state == State::kDone) return lose(block);
  BegunPtr& known = begun_[block];
  if (state == State::kFresh) {
    state = State::kBegun;
    known = std::make_shared<Begun>(block * kManifestBlock, algorithm_);
  }
  begun = known;
  if (begin < begun->end) return lose(block);
  if (begin != begun->end || begun->is_busy) return Turn::kLater;
  if (!begun->early.empty() && begun->early.begin()->first < end) return lose(block);
  begun->is_busy = true;
  begun->end = end;
  return Turn::kNow;
}

/// Notes a span that was written before its turn, and joins it with adjacent ones. If a span is written twice, or there
/// are too many separate ones, the block is read back at the end instead.
void BlockHashes::keep_early(std::int64_t block, Begun& begun, std::int64_t begin, std::int64_t end) {
  auto& early = begun.early;
  const auto after = early.lower_bound(begin);
  const auto before = after == early.begin() ? early.end() : std::prev(after);
  const bool is_twice =
      (after != early.end() && after->first < end) || (before != early.end() && before->second > begin);
  if (is_twice || early.size() == kMostEarly) {
    lose(block);
    return;
  }
  if (after != early.end() && after->first == end) {
    end = after->second;
    early.erase(after);
  }
  if (before != early.end() && before->second == begin) {
    before->second = end;
  } else {
    early.emplace(begin, end);
  }
}

/// Hashes a claimed piece, and then the early spans that directly follow it.
void BlockHashes::hash(std::int64_t block, Begun& begun, std::span<const std::byte> piece, FileWriter& file) {
  begun.hasher.update(piece);
  std::array<std::byte, kRead> buffer;
  for (std::int64_t from = 0; take_early(block, begun, from);) {
    for (; from < begun.end; from += kRead) {
      const auto part = std::span(buffer).first(static_cast<std::size_t>(std::min(kRead, begun.end - from)));
      file.read_back(from, part);
      begun.hasher.update(part);
    }
  }
}

/// Claims the early span that begins where the hashed part ends. If there is none, releases the block or completes it.
bool BlockHashes::take_early(std::int64_t block, Begun& begun, std::int64_t& from) {
  const std::scoped_lock lock(mutex_);
  State& state = states_[static_cast<std::size_t>(block)];
  if (state != State::kBegun) return false;
  const auto next = begun.early.begin();
  if (next != begun.early.end() && next->first == begun.end) {
    from = next->first;
    begun.end = next->second;
    begun.early.erase(next);
    return true;
  }
  begun.is_busy = false;
  if (begun.end != std::min(bytes_, (block + 1) * kManifestBlock)) return false;
  const std::string hash = begun.hasher.finish_hex();
  std::ranges::copy(hash, hashes_.begin() + block * static_cast<std::int64_t>(hash.size()));
  state = State::kDone;
  begun_.erase(block);
  return false;
}

BlockHashes::Turn BlockHashes::lose(std::int64_t block) {
  states_[static_cast<std::size_t>(block)] = State::kLost;
  begun_.erase(block);
  return Turn::kNever;
}

void BlockHashes::set(std::int64_t block, std::string_view hash) {
  const std::scoped_lock lock(mutex_);
  states_[static_cast<std::size_t>(block)] = State::kDone;
  std::ranges::copy(hash, hashes_.begin() + block * static_cast<std::int64_t>(hash.size()));
}

std::string_view BlockHashes::hash_of(std::int64_t block) const {
  const std::size_t digits = hex_digits(algorithm_);
  return std::string_view(hashes_).substr(static_cast<std::size_t>(block) * digits, digits);
}

/// Hashes as much as possible before the write, while the bytes are in the processor's cache. The rest is hashed after
/// the write, because by then the bytes before it have usually been hashed.
void HashingWriter::write_at(std::int64_t offset_bytes, std::span<const std::byte> data) {
  std::vector<std::pair<std::int64_t, std::span<const std::byte>>> later;
  const std::int64_t end = offset_bytes + std::ssize(data);
  for (std::int64_t begin = offset_bytes; begin < end;) {
    const std::int64_t block_end = (begin / kManifestBlock + 1) * kManifestBlock;
    const auto piece = data.subspan(static_cast<std::size_t>(begin - offset_bytes),
                                    static_cast<std::size_t>(std::min(end, block_end) - begin));
    if (!hashes_.add_next(begin, piece, to_)) later.emplace_back(begin, piece);
    begin += std::ssize(piece);
  }
  to_.write_at(offset_bytes, data);
  for (const auto& [begin, piece] : later) hashes_.add_written(begin, piece, to_);
}

}  // namespace shard
