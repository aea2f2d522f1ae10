#include "libshard/manifest/block_hashes.h"

#include <algorithm>

#include "libshard/manifest/manifest.h"

namespace shard {

BlockHashes::BlockHashes(std::int64_t bytes, HashAlgorithm algorithm)
    : bytes_(bytes),
      algorithm_(algorithm),
      states_(static_cast<std::size_t>(block_count(bytes)), State::kFresh),
      hashes_(states_.size() * hex_digits(algorithm), '0') {}

void BlockHashes::add(std::int64_t offset, std::span<const std::byte> data) {
  const std::int64_t end = offset + static_cast<std::int64_t>(data.size());
  for (std::int64_t begin = offset; begin < end;) {
    const std::int64_t block = begin / kManifestBlock;
    const std::int64_t piece_end = std::min(end, (block + 1) * kManifestBlock);
    add_piece(block, begin,
              data.subspan(static_cast<std::size_t>(begin - offset), static_cast<std::size_t>(piece_end - begin)));
    begin = piece_end;
  }
}

void BlockHashes::add_piece(std::int64_t block, std::int64_t begin, std::span<const std::byte> piece) {
  bool is_lost = false;
  Begun begun = take_begun(block, begin, is_lost);
  if (is_lost) return;
  begun.hasher.update(piece);
  begun.end = begin + static_cast<std::int64_t>(piece.size());
  const bool is_complete = begun.end == std::min(bytes_, (block + 1) * kManifestBlock);
  keep(block, std::move(begun), is_complete);
}

/// The hasher that a piece which begins at `begin` continues.
BlockHashes::Begun BlockHashes::take_begun(std::int64_t block, std::int64_t begin, bool& is_lost) {
  const std::scoped_lock lock(mutex_);
  State& state = states_[static_cast<std::size_t>(block)];
  if (state == State::kFresh && begin == block * kManifestBlock) {
    state = State::kBusy;
    return {begin, Hasher(algorithm_)};
  }
  const auto known = begun_.find(block);
  if (state == State::kOpen && known->second.end == begin) {
    state = State::kBusy;
    Begun begun = std::move(known->second);
    begun_.erase(known);
    return begun;
  }
  state = State::kLost;
  if (known != begun_.end()) begun_.erase(known);
  is_lost = true;
  return {begin, Hasher(algorithm_)};
}

void BlockHashes::keep(std::int64_t block, Begun begun, bool is_complete) {
  const std::string hash = is_complete ? begun.hasher.finish_hex() : std::string();
  const std::scoped_lock lock(mutex_);
  State& state = states_[static_cast<std::size_t>(block)];
  if (state != State::kBusy) return;  // Another piece came meanwhile, out of order.
  if (!is_complete) {
    state = State::kOpen;
    begun_.emplace(block, std::move(begun));
    return;
  }
  state = State::kDone;
  std::ranges::copy(hash, hashes_.begin() + block * static_cast<std::int64_t>(hash.size()));
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

}  // namespace shard
