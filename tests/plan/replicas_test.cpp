// Replicas stay among a catalog's chunks; the planner reads one of each.
#include <gtest/gtest.h>

#include <map>

#include "libshard/plan/pieces.h"
#include "libshard/plan/plan.h"
#include "tests/plan/pieces.h"
#include "tests/support/memory_checkpoint.h"

namespace shard {
namespace {

using testing::add_storage;
using testing::below;
using testing::MadeChunk;
using testing::Random;

/// A line of uint8 in parts, each on up to four ranks in any order, with empty chunks among them.
Catalog replicated(Random& random, std::int64_t parts) {
  Catalog catalog;
  std::vector<MadeChunk> chunks;
  for (std::int64_t part = 0; part < parts; ++part) {
    for (std::int64_t copies = 1 + below(random, 4); copies > 0; --copies) {
      const auto file = static_cast<std::uint32_t>(below(random, 3));
      chunks.push_back(
          {{part * 10}, {10}, {1}, 0, add_storage(catalog, file, 10), static_cast<std::int32_t>(below(random, 1000))});
    }
    if (random() % 3 == 0) chunks.push_back({{part * 10}, {0}, {1}, 0, add_storage(catalog, 0, 0), -1});
  }
  testing::add_tensor(catalog, "w", DType::kUint8, {parts * 10}, chunks);
  return catalog;
}

TEST(ChooseReplicas, KeepsOfEveryBoxTheLowestRanksChunk) {
  Random random(11);
  for (int round = 0; round < 500; ++round) {
    const Catalog catalog = replicated(random, 1 + below(random, 6));
    std::map<std::int64_t, std::uint32_t> lowest;  // By offset: the chunk.
    std::size_t filled = 0;
    for (std::uint32_t i = 0; i < catalog.chunks.size(); ++i) {
      const Chunk& chunk = catalog.chunks[i];
      if (chunk.sizes[0] == 0) continue;
      ++filled;
      const auto [entry, is_new] = lowest.try_emplace(chunk.offsets[0], i);
      const auto rank = [&](std::uint32_t each) { return catalog.stored[catalog.chunks[each].stored].rank; };
      if (!is_new && rank(i) < rank(entry->second)) entry->second = i;
    }
    std::vector<Piece> pieces(2);  // Others', which stay.
    append_pieces(catalog, catalog.tensors[0], pieces);
    ASSERT_EQ(pieces.size(), filled + 2);
    choose_replicas(pieces, 2);
    ASSERT_EQ(pieces.size(), lowest.size() + 2);
    std::size_t next = 2;
    for (const auto& [offset, chunk] : lowest) {
      const Piece& piece = pieces[next++];
      ASSERT_EQ(piece.offsets[0], offset);
      ASSERT_EQ(piece.chunk, chunk);
      ASSERT_EQ(piece.storage, catalog.stored[catalog.chunks[chunk].stored].storage);
    }
  }
}

TEST(PlanCopies, ReadsEveryBoxOnceAndKnowsWhereItsReplicasAre) {
  Random random(12);
  for (int round = 0; round < 200; ++round) {
    const std::int64_t parts = 1 + below(random, 6);
    const Catalog source = replicated(random, parts), target = replicated(random, parts);
    const Plan plan = plan_copies(source, target, {});
    ASSERT_EQ(plan.bytes_to_read, parts * 10);
    for (const Piece& piece : plan.from_pieces) {
      const Chunk& chosen = source.chunks[piece.chunk];
      const std::int32_t rank = source.stored[chosen.stored].rank;
      for (std::uint32_t i = piece.chunk + 1; i < source.chunks.size(); ++i) {
        if (source.chunks[i].offsets != chosen.offsets) break;
        ASSERT_GE(source.stored[source.chunks[i].stored].rank, rank);
      }
    }
  }
}

}  // namespace
}  // namespace shard
