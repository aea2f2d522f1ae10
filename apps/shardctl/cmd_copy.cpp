#include <fmt/format.h>

#include <chrono>

#include "apps/shardctl/losses.h"
#include "apps/shardctl/progress.h"
#include "apps/shardctl/ranks.h"
#include "apps/shardctl/render_copy.h"
#include "apps/shardctl/target_choice.h"
#include "apps/shardctl/test_door.h"
#include "apps/shardctl/value_text.h"
#include "apps/shardctl/verbs.h"
#include "libshard/core/error.h"
#include "libshard/io/local_output.h"
#include "libshard/io/paths.h"

namespace shard::app {
namespace {

CopyJob make_job(const Session& session, const Options& options, const OpenSource& source, const TargetForm& form,
                 const ChosenLayout& layout) {
  CopyJob job;
  job.reader = source.reader.get();
  job.layout = layout.layout;
  const WriteOptions write = choose_write_options(options, form, source.catalog(), layout);
  job.traits = traits_of(*form.format, write);
  job.make_writer = [format = form.format, write](const Catalog&) { return format->make_writer(write); };
  job.cloner = &session.fs;
  job.threads = worker_count(options);
  job.max_memory_bytes = parse_size(options.max_memory, "--max-memory");
  job.dry_run = options.dry_run;
  job.stop = session.stop;
  return job;
}

/// The checked destination. It must not touch anything that is read.
std::unique_ptr<OutputStore> open_output(const Session& session, const Options& options, const OpenSource& source) {
  std::vector<std::string> sources = source.paths;
  for (const std::string& path : {options.layout.like, options.layout.layout, options.source_layout}) {
    if (!path.empty()) sources.push_back(path);
  }
  return local_output(session.fs, options.output, sources, {.force = options.force, .sync = !options.no_fsync});
}

bool holds_something(const Catalog& catalog) { return !catalog.tensors.empty() || !catalog.objects.empty(); }

/// The same error, told of what will be there and not of the temporary sibling in which it is made.
Error of_destination(Error error, const std::string& destination) {
  const std::string& path = error.file();
  const std::size_t begin = path.find("." + base_name(destination) + ".shardctl-");
  const std::size_t end = begin == std::string::npos ? begin : path.find('/', begin);
  return end == std::string::npos ? error : error.replace_file(path.substr(0, begin) + path.substr(end + 1));
}

CopyResult run_job(Session& session, const Options& options, OutputStore& output, const CopyJob& job,
                   Progress& progress, Log& log) {
  ProgressMeter meter(session, options, options.verb,
                      [&] { return progress.bytes_written.load() + progress.others_bytes.load(); });
  const auto on_plan = [&](const CopyResult& plan) {
    meter.set_total(plan.bytes_to_write);
    log.info(fmt::format("plan: {} tensors into {} files, read {}, write {}", plan.tensors, plan.files.size(),
                         human_bytes(plan.bytes_to_read), human_bytes(plan.bytes_to_write)));
    log.debug(fmt::format("plan: {} copies in {} tiles, {} of memory, {} threads", plan.copies, plan.tiles,
                          human_bytes(plan.memory_bytes), job.threads));
  };
  try {
    return run_copy_job(output, *session.group, job, progress, on_plan);
  } catch (const Error& error) {
    throw of_destination(error, options.output);
  }
}

}  // namespace

int run_copy(Session& session, const Options& options) {
  const auto start = std::chrono::steady_clock::now();
  const auto open = open_log(session, options);
  Log& log = *open;
  TargetForm form;
  OpenSource source;
  ChosenLayout layout;
  CopyJob job;
  std::unique_ptr<OutputStore> output;
  std::vector<std::string> losses;
  on_all_ranks(session, "catalog", [&] {
    form = choose_form(options);
    source = open_source(session, options, options.sources, log);
    if (form.format == nullptr) form.format = source.format;
    layout = choose_layout(session, options, form, log);
    job = make_job(session, options, source, form, layout);
    output = open_output(session, options, source);
    refuse_obstacles(source.catalog(), options.selection, options, "written", job.traits.objects);
    refuse_objects(source.catalog(), options, job.traits);
    if (options.selection.keep_objects) {
      source.reader->load_objects();
      refuse_obstacles(source.catalog(), options.selection, options, "written");
    }
    check_include({&source.catalog()}, options.selection);
    job.selection = select(source.catalog(), options.selection);
    losses = loss_warnings(session, options, source, job.traits);
  });
  job.on_step = [&](std::string_view step) {
    log.debug(fmt::format("step {}", step));
    pass_step(session, session.group->rank(), step);
  };
  Progress progress;
  CopyResult result = run_job(session, options, *output, job, progress, log);
  if (!is_rank_zero(session)) return 0;
  if (const std::int64_t overflows = progress.cast_overflows.load(); overflows > 0) {
    result.warnings.push_back(fmt::format("--cast: {} values are too large for their new dtype", overflows));
  }
  result.warnings.insert(result.warnings.end(), losses.begin(), losses.end());
  if (result.tensors == 0 && result.objects == 0 && holds_something(source.catalog())) {
    result.warnings.push_back("the output is empty: no tensor and no object of the source was chosen or could be kept");
  }
  for (const std::string& warning : result.warnings) warn(session, options, warning);
  if (options.dry_run) {
    render_plan(session, options, source.label, result);
    return 0;
  }
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  log.debug(fmt::format("{} reads, {} writes", progress.read_calls.load(), progress.write_calls.load()));
  render_result(session, options, source.label, result, progress, taken.count());
  return 0;
}

}  // namespace shard::app
