#include "libshard/job/crc_exchange.h"

#include <cstddef>
#include <cstdint>

#include "libshard/core/error.h"

namespace shard {

std::vector<CrcRun> send_to_owners(Group& group, std::span<const CrcRun> runs, std::span<const Storage> storages,
                                   std::span<const int> owners) {
  const auto ranks = static_cast<std::size_t>(group.size()), own = static_cast<std::size_t>(group.rank());
  std::vector<std::vector<CrcRun>> outgoing(ranks);
  for (const CrcRun& run : runs) outgoing[static_cast<std::size_t>(owners[storages[run.storage].file])].push_back(run);
  outgoing[own].clear();
  std::vector<std::int64_t> sent, all(ranks * ranks);
  for (const std::vector<CrcRun>& each : outgoing) sent.push_back(std::ssize(each));
  group.all_gather(std::as_bytes(std::span(sent)), std::as_writable_bytes(std::span(all)));

  std::vector<std::size_t> counts(ranks);
  std::size_t total = 0;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const std::int64_t count = all[rank * ranks + own];
    if (count < 0) throw Error(ErrorCode::kPeer, "another rank sends fewer than no checksums");
    total += counts[rank] = static_cast<std::size_t>(count);
  }
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
