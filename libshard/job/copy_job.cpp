#include "libshard/job/copy_job.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>

#include "libshard/core/checked.h"
#include "libshard/core/digest.h"
#include "libshard/core/error.h"
#include "libshard/job/copy_run.h"
#include "libshard/ranks/collective_step.h"

namespace shard {

namespace {

/// The source tensors that a target is made of, each once.
std::vector<std::uint32_t> needed_tensors(const Catalog& target) {
  std::vector<std::uint32_t> tensors;
  tensors.reserve(target.tensors.size());
  for (const Tensor& tensor : target.tensors) {
    if (tensor.source != kNoIndex) tensors.push_back(tensor.source);
  }
  std::ranges::sort(tensors);
  const auto repeated = std::ranges::unique(tensors);
  tensors.erase(repeated.begin(), repeated.end());
  return tensors;
}

std::int64_t bytes_of(const std::vector<File>& files) {
  std::int64_t bytes = 0;
  for (const File& file : files) bytes = checked_add(bytes, file.bytes);
  return bytes;
}

/// Source's and target's, each text once.
std::vector<std::string> all_warnings(const Catalog& source, const Catalog& target) {
  std::vector<std::string> warnings;
  std::set<std::string_view> seen;
  for (const Catalog* catalog : {&source, &target}) {
    for (const std::string& warning : catalog->warnings) {
      if (seen.insert(warning).second) warnings.push_back(warning);
    }
  }
  return warnings;
}

CopyResult describe(const Catalog& source, const Catalog& target, const Plan& plan, std::int64_t free_bytes) {
  CopyResult result;
  result.format = target.format;
  result.files = target.files;
  result.tensors = static_cast<std::int64_t>(target.tensors.size());
  result.objects = static_cast<std::int64_t>(target.objects.size());
  result.bytes_to_read = plan.bytes_to_read;
  result.bytes_to_write = plan.bytes_to_write;
  result.copies = plan.copies;
  result.tiles = plan.tile_count;
  result.memory_bytes = plan.memory_bytes;
  result.free_bytes = free_bytes;
  result.warnings = all_warnings(source, target);
  return result;
}

PreparedCopy prepare(const CopyJob& job, int rank, int threads) {
  const Catalog& source = job.reader->catalog();
  PreparedCopy prepared;
  prepared.target = make_target(source, job.selection, job.layout, job.traits);
  prepared.writer = job.make_writer(prepared.target);
  prepared.writer->place(prepared.target);
  job.reader->locate(needed_tensors(prepared.target));
  prepared.plan = plan_copies(source, prepared.target,
                              {.max_memory_bytes = job.max_memory_bytes,
                               .threads = threads,
                               .checksums = prepared.writer->needs_checksums(),
                               .only_rank = job.by_owner ? rank : -1});
  return prepared;
}

/// Ranks that saw other files or were given other options planned something else.
std::string fingerprint(const PreparedCopy& prepared, bool by_owner) {
  Hasher hasher(HashAlgorithm::kXxh3_128);
  const auto add = [&](const auto&... numbers) {
    const std::array<std::int64_t, sizeof...(numbers)> all{static_cast<std::int64_t>(numbers)...};
    hasher.update(std::as_bytes(std::span(all)));
  };
  for (const File& file : prepared.target.files) {
    hasher.update(file.path);
    add(file.bytes);
  }
  for (const Storage& storage : prepared.target.storages) add(storage.offset, storage.bytes, storage.file);
  if (by_owner) return hasher.finish_hex();  // Plans differ.
  const Plan& plan = prepared.plan;
  add(plan.units.size(), plan.tile_count, plan.bytes_to_read, plan.bytes_to_write, plan.copies);
  for (const Unit& unit : plan.units) add(unit.first_tile, unit.from, unit.to);
  return hasher.finish_hex();
}

/// One number of rank 0's, on all ranks.
int from_rank_zero(Group& group, int number) {
  group.broadcast(std::as_writable_bytes(std::span(&number, 1)), 0);
  return number;
}

}  // namespace

CopyResult run_copy_job(OutputStore& output, Group& group, const CopyJob& job, Progress& progress,
                        const std::function<void(const CopyResult&)>& on_plan) {
  const int threads = from_rank_zero(group, job.threads);  // Tiles depend on it.
  PreparedCopy prepared;
  std::int64_t free_bytes = 0;
  collective_step(group, {.stop = job.stop}, [&](const std::stop_token&) {
    tell_step(job, "plan");
    prepared = prepare(job, group.rank(), threads);
    free_bytes = output.free_bytes();
  });
  if (group.size() > 1) {
    expect_same(group,
                fmt::format("{} files of {} bytes ({})", prepared.target.files.size(), bytes_of(prepared.target.files),
                            fingerprint(prepared, job.by_owner)),
                ErrorCode::kInvalidArgument, "they would copy different things");
  }
  CopyResult result = describe(job.reader->catalog(), prepared.target, prepared.plan, free_bytes);
  if (job.dry_run) {
    const std::int64_t needed = bytes_of(prepared.target.files);
    if (free_bytes < needed) {
      result.warnings.push_back(fmt::format("the output needs {} bytes, the disk has {} free", needed, free_bytes));
    }
    return result;
  }
  if (on_plan) on_plan(result);
  CopyRun(output, group, job, prepared, progress).run();
  return result;
}

}  // namespace shard
