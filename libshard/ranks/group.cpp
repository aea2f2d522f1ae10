#include "libshard/ranks/group.h"

#include <algorithm>

namespace shard {

namespace {

class SoloGroup final : public Group {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::string_view backend() const override { return "none"; }
  void barrier() override {}
  void broadcast(std::span<std::byte>, int) override {}
  void all_gather(std::span<const std::byte> own, std::span<std::byte> all) override {
    std::ranges::copy(own, all.begin());
  }
  void exchange(std::span<const std::span<const std::byte>> to, std::span<const std::span<std::byte>> from) override {
    std::ranges::copy(to[0], from[0].begin());
  }
  void set_timeout(std::chrono::milliseconds) override {}
  void abort() noexcept override {}
};

/// One piece of each rank, which an exchange with `from` fills.
std::vector<Bytes> received_pieces(std::span<const std::uint64_t> sizes, std::span<std::span<std::byte>> from) {
  std::vector<Bytes> pieces(sizes.size());
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    pieces[i].resize(sizes[i]);
    from[i] = pieces[i];
  }
  return pieces;
}

}  // namespace

Group& solo_group() {
  static SoloGroup group;
  return group;
}

std::vector<Bytes> gather(Group& group, std::span<const std::byte> own, int root) {
  const std::vector<std::uint64_t> sizes = all_gather_values<std::uint64_t>(group, own.size());
  const auto ranks = static_cast<std::size_t>(group.size());
  std::vector<std::span<const std::byte>> to(ranks);
  to[static_cast<std::size_t>(root)] = own;
  std::vector<std::span<std::byte>> from(ranks);
  std::vector<Bytes> pieces;
  if (group.rank() == root) pieces = received_pieces(sizes, from);
  group.exchange(to, from);
  return pieces;
}

std::vector<Bytes> all_gather(Group& group, std::span<const std::byte> own) {
  const std::vector<std::uint64_t> sizes = all_gather_values<std::uint64_t>(group, own.size());
  const auto ranks = static_cast<std::size_t>(group.size());
  const std::vector<std::span<const std::byte>> to(ranks, own);
  std::vector<std::span<std::byte>> from(ranks);
  std::vector<Bytes> pieces = received_pieces(sizes, from);
  group.exchange(to, from);
  return pieces;
}

std::vector<Bytes> all_to_all(Group& group, std::span<const Bytes> outgoing) {
  const std::size_t ranks = outgoing.size(), own = static_cast<std::size_t>(group.rank());
  std::vector<std::uint64_t> sent(ranks), sizes(ranks);
  std::vector<std::span<const std::byte>> to(ranks);
  std::vector<std::span<std::byte>> from(ranks);
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    if (rank == own) continue;
    sent[rank] = outgoing[rank].size();
    to[rank] = std::as_bytes(std::span(sent).subspan(rank, 1));
    from[rank] = std::as_writable_bytes(std::span(sizes).subspan(rank, 1));
  }
  group.exchange(to, from);
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    if (rank != own) to[rank] = outgoing[rank];
  }
  std::vector<Bytes> pieces = received_pieces(sizes, from);
  group.exchange(to, from);
  return pieces;
}

Bytes broadcast(Group& group, std::span<const std::byte> own, int root) {
  std::uint64_t size = own.size();
  group.broadcast(std::as_writable_bytes(std::span(&size, 1)), root);
  Bytes bytes(size);
  if (group.rank() == root) std::ranges::copy(own, bytes.begin());
  group.broadcast(bytes, root);
  return bytes;
}

}  // namespace shard
