#include "libshard/job/resumption.h"

#include <fmt/format.h>

#include "libshard/core/digest.h"
#include "libshard/core/error.h"
#include "libshard/ranks/collective_step.h"

namespace shard {

namespace {

/// Over every copy, and what it is made for.
std::string hash_of_plan(const PreparedCopy& prepared, const std::string& inputs, const CopyJob& job,
                         const Group& group) {
  Hasher hasher(HashAlgorithm::kXxh3_128);
  hasher.update(inputs);
  if (plans_differ(job)) {
    hasher.update(fmt::format("{} {} {} {}", group.size(), job.by_owner, job.parts != nullptr, job.own_places));
    return hasher.finish_hex();
  }
  std::vector<std::int64_t> numbers;
  const auto add = [&](const auto&... all) { (numbers.push_back(static_cast<std::int64_t>(all)), ...); };
  for (const Unit& unit : prepared.plan.units) {
    add(unit.from, unit.to, unit.first_tile, unit.from_count, unit.to_count);
    numbers.insert(numbers.end(), unit.tile.begin(), unit.tile.end());
  }
  for (const std::vector<Piece>* pieces : {&prepared.plan.from_pieces, &prepared.plan.to_pieces}) {
    for (const Piece& piece : *pieces) {
      add(piece.storage, piece.first);
      for (const Dims* dims : {&piece.offsets, &piece.sizes, &piece.strides}) {
        numbers.insert(numbers.end(), dims->begin(), dims->end());
      }
      if (numbers.size() < 4096) continue;
      hasher.update(std::as_bytes(std::span(numbers)));
      numbers.clear();
    }
  }
  hasher.update(std::as_bytes(std::span(numbers)));
  return hasher.finish_hex();
}

}  // namespace

Left find_left(OutputStore& store, Group& group, const CopyJob& job, const OutputPlaces& places) {
  Left left;
  if (!job.resume || job.dry_run) return left;
  Bytes own;
  collective_step(group, {.stop = job.stop}, [&](const std::stop_token&) {
    if (places.is_root(group.rank())) left.output = store.find_left();
    if (left.output != nullptr) own = heads_of(left.output->notes());
  });
  left.heads = read_heads(all_gather(group, own));
  if (left.heads.empty()) left.output.reset();  // It says nothing that can be gone on with.
  return left;
}

PlanGrid grid_of(const Left& left, const PlanGrid& now) {
  return left.is_found() ? left.heads.begin()->second.grid : now;
}

void check_memory(const CopyJob& job, const Plan& plan, const PlanGrid& grid, std::int64_t memory_bytes) {
  if (grid.max_memory_bytes <= memory_bytes) return;
  const bool is_tile_alone = job.device == nullptr && job.parts == nullptr;  // Else buffers beside tiles depend on it.
  if (is_tile_alone && fits_in_memory(plan, memory_bytes)) return;
  throw Error(ErrorCode::kInvalidArgument, "cannot resume: the interrupted run had a higher memory limit")
      .expected(grid.max_memory_bytes)
      .found(memory_bytes);
}

bool keeps_journal(const CopyJob& job, const Plan& plan) {
  return !job.version.empty() && !job.dry_run && plan.bytes_to_write >= kLeastJournaledBytes;
}

JournalHead make_head(const PreparedCopy& prepared, const std::string& files, const std::string& inputs,
                      const CopyJob& job, const Group& group, const PlanGrid& grid) {
  JournalHead head{grid, {}};
  head.job.version = job.version;
  head.job.source = identify_files(*job.reader);
  head.job.target = fmt::format("{}, {}", prepared.target.format, files);
  head.job.plan = hash_of_plan(prepared, inputs, job, group);
  return head;
}

void check_resumed(const Left& left, const PreparedCopy& prepared, const CopyJob& job, int rank) {
  if (!left.is_found()) return;
  const auto own = left.heads.find(rank);
  if (own == left.heads.end() && plans_differ(job)) return;
  const JournalHead& head = own != left.heads.end() ? own->second : left.heads.begin()->second;
  expect_same_job(head.job, prepared.journal->job);
}

}  // namespace shard
