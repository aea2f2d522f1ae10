#include "libshard/job/copy_job.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "libshard/core/checked.h"
#include "libshard/core/error.h"

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

std::string short_of_space(std::int64_t needed, std::int64_t free) {
  return fmt::format("the output needs {} bytes, the disk has {} free", needed, free);
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

/// Makes the files, fills them and commits. `target` is placed, the source located.
void write_output(FileSystem& fs, const CopyJob& job, const Plan& plan, const Catalog& target, Writer& writer,
                  const OutputOptions& options, Progress& progress) {
  const std::unique_ptr<Output> output = begin_output(fs, job.destination, options);
  // After begin_output, which removes what killed runs left behind.
  const std::int64_t needed = bytes_of(target.files), free = fs.free_bytes(parent_path(job.destination));
  if (free < needed) {
    throw Error(ErrorCode::kResource, short_of_space(needed, free))
        .in_file(job.destination)
        .expected(needed)
        .found(free)
        .hint("free some space, or write to another disk");
  }
  std::vector<FileWriter*> files;
  files.reserve(target.files.size());
  for (const File& file : target.files) {
    check_stop(job.stop);
    files.push_back(&output->file(file.path, file.bytes));
  }
  const ExecuteOptions how{.threads = job.threads,
                           .max_memory_bytes = job.max_memory_bytes,
                           .checksums = writer.needs_checksums(),
                           .cloner = &fs,
                           .stop = job.stop};
  const std::unique_ptr<Checksums> checksums =
      execute(plan, job.reader->catalog(), *job.reader, target, files, how, progress);
  writer.finish(target, *checksums, files);
  check_stop(job.stop);
  output->commit();
}

}  // namespace

CopyResult run_copy_job(FileSystem& fs, const CopyJob& job, Progress& progress,
                        const std::function<void(const CopyResult&)>& on_plan) {
  const Catalog& source = job.reader->catalog();
  const Selection selection = select(source, job.selection);
  Catalog target = make_target(source, selection, job.layout, job.traits);
  const std::unique_ptr<Writer> writer = job.make_writer(target);
  writer->place(target);
  OutputOptions options = job.output;
  options.folder = writer->is_folder();
  check_destination(fs, job.destination, job.sources, options);

  job.reader->locate(needed_tensors(target));
  const PlanOptions how{
      .max_memory_bytes = job.max_memory_bytes, .threads = job.threads, .checksums = writer->needs_checksums()};
  const Plan plan = plan_copies(source, target, how);
  const std::int64_t free = fs.free_bytes(parent_path(job.destination));
  CopyResult result = describe(source, target, plan, free);
  if (job.dry_run) {
    const std::int64_t needed = bytes_of(target.files);
    if (free < needed) result.warnings.push_back(short_of_space(needed, free));
    return result;
  }
  if (on_plan) on_plan(result);
  write_output(fs, job, plan, target, *writer, options, progress);
  return result;
}

}  // namespace shard
