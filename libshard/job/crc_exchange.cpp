#include "libshard/job/crc_exchange.h"

#include <cstddef>
#include <cstdint>
#include <numeric>

namespace shard {

namespace {

/// How many runs each rank sends here.
std::vector<std::size_t> exchange_counts(Group& group, std::span<const std::vector<CrcRun>> outgoing) {
  std::vector<std::uint64_t> sent, counts(outgoing.size());
  for (const std::vector<CrcRun>& each : outgoing) sent.push_back(each.size());
  std::vector<std::span<const std::byte>> to;
  std::vector<std::span<std::byte>> from;
  for (std::size_t rank = 0; rank < outgoing.size(); ++rank) {
    const bool is_other = rank != static_cast<std::size_t>(group.rank());
    const std::size_t count = is_other ? 1 : 0;
    to.push_back(std::as_bytes(std::span(sent).subspan(rank, count)));
    from.push_back(std::as_writable_bytes(std::span(counts).subspan(rank, count)));
  }
  group.exchange(to, from);
  return {counts.begin(), counts.end()};
}

}  // namespace

std::vector<CrcRun> send_to_owners(Group& group, std::span<const CrcRun> runs, std::span<const Storage> storages,
                                   std::span<const int> owners) {
  const auto ranks = static_cast<std::size_t>(group.size()), own = static_cast<std::size_t>(group.rank());
  std::vector<std::vector<CrcRun>> outgoing(ranks);
  for (const CrcRun& run : runs) outgoing[static_cast<std::size_t>(owners[storages[run.storage].file])].push_back(run);
  outgoing[own].clear();
  const std::vector<std::size_t> counts = exchange_counts(group, outgoing);
  const std::size_t total = std::accumulate(counts.begin(), counts.end(), std::size_t{0});
  std::vector<CrcRun> incoming(total);
  std::vector<std::span<const std::byte>> to;
  std::vector<std::span<std::byte>> from;
  std::size_t begin = 0;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    to.push_back(std::as_bytes(std::span(outgoing[rank])));
    from.push_back(std::as_writable_bytes(std::span(incoming).subspan(begin, counts[rank])));
    begin += counts[rank];
  }
  group.exchange(to, from);
  return incoming;
}

}  // namespace shard
