#include "libshard/job/copy_job.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <set>

#include "libshard/catalog/element_counts.h"
#include "libshard/core/checked.h"
#include "libshard/core/digest.h"
#include "libshard/core/error.h"
#include "libshard/core/short_text.h"
#include "libshard/core/sort_unique.h"
#include "libshard/exec/store_copies.h"
#include "libshard/job/copy_run.h"
#include "libshard/job/exchange_schedule.h"
#include "libshard/job/file_shares.h"
#include "libshard/job/group_store.h"
#include "libshard/job/journal.h"
#include "libshard/job/manifest_run.h"
#include "libshard/ranks/collective_step.h"

namespace shard {

namespace {

// Resuming an earlier, interrupted run, and the record that later runs need to resume this one.

/// The part of the resumed run that this rank found. Empty if there is none.
struct Left {
  std::unique_ptr<LeftOutput> output;  ///< Only on a root.
  JournalHeads heads;                  ///< The journal heads of all ranks, on all ranks.

  bool is_found() const { return !heads.empty(); }
};

/// A hash of `inputs`, CopyJob::computation and every copy. If the ranks' plans differ, the topology takes the place of
/// the copies.
std::string hash_of_plan(const PreparedCopy& prepared, const std::string& inputs, const CopyJob& job,
                         const Group& group) {
  Hasher hasher(HashAlgorithm::kXxh3_128);
  hasher.update(inputs);
  hasher.update(job.computation);
  if (job.topology.plans_differ()) {
    hasher.update(job.topology.text(group.size()));
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

/// Finds the output of an interrupted run. Collective. \throws Error kPeer
Left find_left(OutputStore& store, Group& group, const CopyJob& job, const OutputPlaces& places) {
  Left left;
  if (!job.resume || job.dry_run) return left;
  Bytes own;
  collective_step(group, {.stop = job.stop}, [&](const std::stop_token&) {
    if (places.is_root(group.rank())) left.output = store.find_left();
    if (left.output != nullptr) own = heads_of(left.output->notes());
  });
  left.heads = read_heads(all_gather(group, own));
  const bool needs_journal = left.output != nullptr && !left.output->compares_content();
  if (left.heads.empty() && needs_journal) left.output.reset();  // Without a journal, it cannot be resumed.
  return left;
}

/// The grid of tiles of the run that is resumed, or else of this run. Both may differ in threads and memory.
PlanGrid grid_of(const Left& left, const PlanGrid& now) {
  return left.is_found() ? left.heads.begin()->second.grid : now;
}

/// \throws Error kInvalidArgument  a tile of `plan`, which was made for `grid`, does not fit into `memory_bytes`
void check_memory(const CopyJob& job, const Plan& plan, const PlanGrid& grid, std::int64_t memory_bytes) {
  if (grid.max_memory_bytes <= memory_bytes) return;
  // In the other cases, the buffers next to tiles depend on the memory.
  const bool is_tile_alone = job.device == nullptr && job.topology.peer_store == nullptr;
  if (is_tile_alone && fits_in_memory(plan, memory_bytes)) return;
  throw Error(ErrorCode::kInvalidArgument, "cannot resume: the interrupted run had a higher memory limit")
      .expected(grid.max_memory_bytes)
      .found(memory_bytes);
}

bool keeps_journal(const CopyJob& job, const Plan& plan) {
  return !job.version.empty() && !job.dry_run && plan.bytes_to_write >= kLeastJournaledBytes;
}

/// \param files  the output's description in messages. \param inputs  a hash of the data from which all ranks' plans
///   are made. Cost: linear in pieces
JournalHead make_head(const PreparedCopy& prepared, const std::string& files, const std::string& inputs,
                      const std::vector<SourceFile>& sources, const CopyJob& job, const Group& group,
                      const PlanGrid& grid) {
  JournalHead head{grid, {}};
  head.job.version = job.version;
  head.job.source = sources;
  head.job.target = fmt::format("{}, {}", prepared.target.format, files);
  head.job.plan = hash_of_plan(prepared, inputs, job, group);
  return head;
}

/// \throws Error kInvalidArgument  this rank's job is not the interrupted one
void check_resumed(const Left& left, const PreparedCopy& prepared, const CopyJob& job, int rank) {
  if (!left.is_found()) return;
  const auto own = left.heads.find(rank);
  if (own == left.heads.end() && job.topology.plans_differ()) return;
  const JournalHead& head = own != left.heads.end() ? own->second : left.heads.begin()->second;
  expect_same_job(head.job, prepared.journal->job);
}

/// Whether ranks compare what they see of the source. Writing a small output takes less time than opening all files. A
/// rank that copies only its own files need not see those of others.
bool compares_sources(const Group& group, const CopyJob& job, const Catalog& target, const OutputStore& output) {
  const bool is_worth_it = output.traits().has_notes && bytes_of(target.files) >= kLeastJournaledBytes;
  return group.size() > 1 && !job.topology.by_owner && !job.dry_run && is_worth_it;
}

/// Compares the ends of the source's files with those that rank 0 sees. Disks of ranks may have files of different
/// saves under one name and with one size. Collective. \throws Error kCorruption
void check_same_source(Group& group, const CopyJob& job, const std::vector<SourceFile>& seen) {
  if (group.size() == 1) return;
  WireWriter own;
  std::ranges::for_each(seen, [&](const SourceFile& file) { own.text(file.ends); });
  const Bytes all = broadcast(group, own.take(), 0);
  collective_step(group, {.stop = job.stop}, [&](const std::stop_token&) {
    WireReader ends(all);
    for (const SourceFile& file : seen) {
      if (ends.at_end() || ends.text() == file.ends) continue;
      throw different_files(0, group.rank(), file.path).because("their first or last 4096 bytes differ");
    }
  });
}

constexpr std::int64_t kPartBytes = std::int64_t{5} << 30;  ///< For a rank's file, if the layout sets no limit.

/// The source tensors that a target needs, without duplicates.
std::vector<std::uint32_t> needed_tensors(const Catalog& target) {
  std::vector<std::uint32_t> tensors;
  tensors.reserve(target.tensors.size());
  for (const Tensor& tensor : target.tensors) {
    if (tensor.source != kNoIndex) tensors.push_back(tensor.source);
  }
  sort_unique(tensors);
  return tensors;
}

/// For example "3 files of 500 bytes".
std::string name_files(const std::vector<File>& files) {
  return fmt::format("{} files of {} bytes", files.size(), bytes_of(files));
}

/// The warnings of source and target, without duplicates.
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

/// Chooses a replica on this rank, if there is one. Otherwise the choice depends on where replicas are stored, so that
/// ranks share the reading.
std::function<std::size_t(std::span<const Piece>)> replica_choice(const Catalog& source, const FileHolders& holders,
                                                                  int rank) {
  return [&source, &holders, rank](std::span<const Piece> replicas) {
    for (std::size_t i = 0; i < replicas.size(); ++i) {
      if (holders.holds(rank, source.storages[replicas[i].storage].file)) return i;
    }
    return replicas.front().storage % replicas.size();
  };
}

/// The memory that this rank may use: the job's limit, or the free memory of its device minus an eighth for other
/// programs.
std::int64_t own_memory(const CopyJob& job) {
  if (job.device == nullptr) return job.max_memory_bytes;
  const std::int64_t free_bytes = job.device->free_bytes();
  return std::min(job.max_memory_bytes, free_bytes - free_bytes / 8);
}

/// The part of a rank's memory that a plan's tiles may use.
/// \throws Error kResource  a device has too little memory; kInvalidArgument  the limit is too small
std::int64_t tile_memory(const CopyJob& job, std::int64_t memory_bytes, const Catalog& target) {
  if (job.device == nullptr) return job.topology.copy_memory(memory_bytes);
  const Catalog& source = job.reader->catalog();
  const std::int64_t least_bytes = job.topology.rank_memory(least_memory_on_device(source, target));
  const bool is_devices_limit = memory_bytes < job.max_memory_bytes;
  if (is_devices_limit && memory_bytes < least_bytes) {
    throw out_of_device_memory(job.device->info(), least_bytes, memory_bytes);
  }
  return tile_memory_on_device(job.topology.copy_memory(memory_bytes), source, target);
}

/// The memory that every rank may use: the smallest limit of all, because all must make the same plan. Collective.
std::int64_t agree_on_memory(Group& group, const CopyJob& job) {
  std::int64_t own_bytes = job.max_memory_bytes;
  if (job.device == nullptr) return own_bytes;
  collective_step(group, {.stop = job.stop}, [&](const std::stop_token&) { own_bytes = own_memory(job); });
  return std::ranges::min(all_gather_values(group, own_bytes));
}

/// Plans the copies of this rank. \pre everything except the plan is prepared
Plan plan_for(const CopyJob& job, const PreparedCopy& prepared, int rank, const PlanGrid& grid) {
  const Catalog& source = job.reader->catalog();
  PlanOptions options{.max_memory_bytes = tile_memory(job, grid.max_memory_bytes, prepared.planned()),
                      .threads = grid.threads,
                      .checksums = prepared.writer->needs_checksums()};
  std::vector<int> readers;
  std::vector<std::uint8_t> own_storages;
  if (job.topology.fills_own_files()) {
    own_storages = prepared.storages_of(rank, prepared.planned());
    options.own_storages = own_storages;
    if (job.topology.peer_store != nullptr) options.choose_replica = replica_choice(source, *prepared.holders, rank);
  } else if (job.topology.peer_store != nullptr) {
    readers = prepared.holders->readers();
    options.only_rank = rank;
    options.readers = readers;
  } else if (job.topology.by_owner) {
    options.only_rank = rank;
  }
  return plan_copies(source, prepared.planned(), options);
}

Catalog make_mapped_target(const AppliedMap& map, const Layout& layout, const FormatTraits& traits) {
  if (traits.mapped_ranks) {
    const auto* size = std::get_if<SizeLayout>(&layout);
    const std::int64_t most = size != nullptr ? size->bytes : kPartBytes;
    return map.ranked_target(traits.name, traits.many_files ? most : std::numeric_limits<std::int64_t>::max());
  }
  if (map.ranks() == 1) return make_target(map.stored(), map.selection(), layout, traits);
  throw Error(ErrorCode::kUnsupported, fmt::format("{} cannot store tensors that a map shards over {}", traits.name,
                                                   plural(map.ranks(), "rank")));
}

/// How ranks share the files of an output that has one writer for each byte. They do not if the output's store could
/// copy the source itself, because only one rank can cut a file into the parts that this needs.
FileShares shares_of(const CopyJob& job, const PreparedCopy& prepared, int ranks, const OutputStore& output) {
  const Catalog& source = job.reader->catalog();
  const bool is_mapped = prepared.filled.has_value();
  if (!job.topology.whole_files || is_mapped || source.files.empty()) return {};
  const std::string& name = job.reader->file(0)->name();
  constexpr std::int64_t kAnyBytes = 1 << 30;
  const SourceRun run{name, 0, 0, kAnyBytes};
  if (!output.would_copy(kAnyBytes, std::span(&run, 1)).empty()) return {};
  return share_files(prepared.target, prepared.owners, ranks,
                     [&](std::int64_t bytes) { return output.share_bytes(bytes); });
}

/// Makes all decisions of a run, and frees the job's TargetMaker. `memory_bytes` is the limit of this run. It may
/// differ from the one in `grid` if the run resumes an earlier one.
PreparedCopy prepare(CopyJob& job, const Group& group, const PlanGrid& grid, std::int64_t memory_bytes,
                     const OutputStore& output) {
  PreparedCopy prepared;
  prepared.memory_bytes = std::min(grid.max_memory_bytes, memory_bytes);
  prepared.target = job.target.make();
  job.target.make = nullptr;
  prepared.writer = job.make_writer(prepared.target);
  prepared.writer->place(prepared.target);
  if (job.target.fill) prepared.filled = job.target.fill(prepared.target);
  const bool is_folder = prepared.writer->is_folder();
  prepared.owners = file_owners(prepared.target, group.size());
  if (job.topology.own_places) prepared.file_places = prepared.owners;
  if (job.manifest) {
    prepared.manifest = manifest_file(*job.manifest, is_folder, prepared.target, prepared.file_places);
  }
  prepared.manifest_owner = is_folder ? 0 : prepared.owners.front();
  job.reader->locate(needed_tensors(prepared.planned()));
  if (job.topology.peer_store != nullptr) prepared.holders = find_holders(*job.reader, *job.topology.peer_store);
  prepared.shares = shares_of(job, prepared, group.size(), output);
  prepared.plan = plan_for(job, prepared, group.rank(), grid);
  check_memory(job, prepared.plan, grid, memory_bytes);
  prepared.plan.memory_bytes = std::min(prepared.plan.memory_bytes, memory_bytes);
  return prepared;
}

/// A hash that differs if ranks saw different files or have different options, because their plans would differ.
std::string fingerprint(const PreparedCopy& prepared, const Catalog& source, bool differ) {
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
  if (differ) {  // The data from which the plans of all ranks are made.
    for (const Storage& storage : source.storages) add(storage.offset, storage.bytes, storage.file);
    for (const Tensor& tensor : prepared.planned().tensors) add(tensor.source, tensor.dtype);
    for (const Catalog* catalog : {&source, &prepared.planned()}) {  // A map may permute the elements of a storage.
      for (const Chunk& chunk : catalog->chunks) {
        add(chunk.first, chunk.stored);
        for (const Dims dims : {chunk.offsets, chunk.sizes, chunk.strides}) hasher.update(std::as_bytes(dims.span()));
      }
    }
    return hasher.finish_hex();
  }
  const Plan& plan = prepared.plan;
  add(plan.units.size(), plan.tile_count, plan.bytes_to_read, plan.bytes_to_write, plan.copies);
  for (const Unit& unit : plan.units) add(unit.first_tile, unit.from, unit.to);
  return hasher.finish_hex();
}

/// Adds up the numbers of all ranks' plans.
void sum_plans(Group& group, CopyResult& result) {
  const std::array numbers{&result.bytes_to_read, &result.bytes_to_write, &result.copies, &result.tiles,
                           &result.bytes_to_clone};
  std::array<std::int64_t, numbers.size() + 1> own{};
  for (std::size_t i = 0; i < numbers.size(); ++i) own[i] = *numbers[i];
  own.back() = result.memory_bytes;
  const auto all = all_gather_values(group, own);
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    *numbers[i] = 0;
    for (const auto& each : all) *numbers[i] = checked_add(*numbers[i], each[i]);
  }
  for (const auto& each : all) result.memory_bytes = std::max(result.memory_bytes, each.back());
}

/// Adds missing space to the warnings, and sets the smallest free space of any place.
void describe_space(std::span<const PlaceSpace> spaces, bool is_one, CopyResult& result) {
  result.free_bytes = spaces.front().free_bytes;
  for (const PlaceSpace& space : spaces) {
    result.free_bytes = std::min(result.free_bytes, space.free_bytes);
    if (space.free_bytes >= space.needed_bytes) continue;
    result.warnings.push_back(fmt::format("{}the output needs {} bytes, but the disk has only {} free",
                                          is_one ? "" : fmt::format("rank {}: ", space.root), space.needed_bytes,
                                          space.free_bytes));
  }
}

/// Returns rank 0's number on all ranks.
int from_rank_zero(Group& group, int number) {
  group.broadcast(std::as_writable_bytes(std::span(&number, 1)), 0);
  return number;
}

}  // namespace

TargetMaker selected_target(const Reader& reader, Selection selection, Layout layout, FormatTraits traits) {
  return {.make = [&reader, selection = std::move(selection), layout = std::move(layout), traits] {
    return make_target(reader.catalog(), selection, layout, traits);
  }};
}

TargetMaker mapped_target(const AppliedMap& map, Layout layout, FormatTraits traits, std::uint32_t first_padding) {
  return {.make = [&map, layout = std::move(layout), traits] { return make_mapped_target(map, layout, traits); },
          .fill = [&map, first_padding](const Catalog& target) { return map.plan_target(target, first_padding); }};
}

CopyResult run_copy_job(OutputStore& output, Group& group, CopyJob job, Progress& progress,
                        const std::function<void(const CopyResult&)>& on_plan) {
  const int threads = from_rank_zero(group, job.threads);  // Tiles depend on the number of threads.
  job.topology.whole_files = output.traits().whole_files && group.size() > 1;
  const std::int64_t memory_bytes = agree_on_memory(group, job);
  const OutputPlaces places = job.topology.own_places ? find_places(group, output, job.stop) : one_place(group.size());
  Left left = find_left(output, group, job, places);
  PlanGrid grid;
  const Catalog& source = job.reader->catalog();
  PreparedCopy prepared;
  std::vector<SourceFile> seen;
  std::int64_t free_bytes = 0;
  collective_step(
      group, {.stop = job.stop, .traffic = job.topology.peer_store, .awaited = job.awaited},
      [&](const std::stop_token&) {
        notify(job, "plan");
        grid = grid_of(left, {threads, memory_bytes});
        prepared = prepare(job, group, grid, memory_bytes, output);
        const bool has_head = left.is_found() || (output.traits().has_notes && keeps_journal(job, prepared.plan));
        if (has_head || compares_sources(group, job, prepared.target, output)) seen = identify_files(*job.reader);
        if (has_head) {
          const std::string files = name_files(prepared.target.files) + (prepared.manifest ? ", a manifest" : "");
          prepared.journal = make_head(prepared, files, fingerprint(prepared, source, true), seen, job, group, grid);
        }
        check_resumed(left, prepared, job, group.rank());
        free_bytes = output.free_bytes();
      });
  if (group.size() > 1) {
    expect_same(group,
                fmt::format("{} ({})", name_files(prepared.target.files),
                            fingerprint(prepared, source, job.topology.plans_differ())),
                ErrorCode::kInvalidArgument, "their plans differ");
  }
  check_same_source(group, job, seen);
  CopyResult result = describe(source, prepared.target, prepared.plan, free_bytes);
  // The limit applies to the host and to the device.
  if (job.device != nullptr) result.memory_bytes = job.topology.copy_memory(memory_bytes);
  if (prepared.manifest) result.files.push_back(*prepared.manifest);
  if (job.dry_run && !prepared.manifest) {
    collective_step(group, {.stop = job.stop, .traffic = job.topology.peer_store}, [&](const std::stop_token&) {
      result.bytes_to_clone = bytes_to_copy_in_store(prepared.plan, source, *job.reader, prepared.planned(),
                                                     prepared.writer->needs_checksums(), output);
    });
  }
  if (job.topology.sums_plans()) sum_plans(group, result);
  if (prepared.holders) {
    std::string warning = warning_of_file_ranks(source, *prepared.holders, group.size());
    if (!warning.empty()) result.warnings.push_back(std::move(warning));
  }
  if (job.dry_run) {
    std::vector<int> owners = prepared.owners;
    if (prepared.manifest) owners.push_back(prepared.manifest_owner);
    describe_space(find_space(group, places, result.files, owners, free_bytes), places.is_one, result);
    return result;
  }
  if (on_plan) on_plan(result);
  CopyRun(output, group, job, prepared, places, std::move(left.output), progress).run();
  return result;
}

}  // namespace shard
