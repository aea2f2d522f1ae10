#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>

#include "apps/shardctl/command_line.h"
#include "apps/shardctl/progress.h"
#include "apps/shardctl/render_copy.h"
#include "apps/shardctl/target_choice.h"
#include "apps/shardctl/value_text.h"
#include "apps/shardctl/verbs.h"
#include "libshard/core/error.h"

namespace shard::app {
namespace {

constexpr std::size_t kNamesShown = 3;

/// "'a', 'b', 'c' and 4 more"
std::string first_few(const std::vector<std::string>& names) {
  std::vector<std::string> shown;
  for (std::size_t i = 0; i < std::min(kNamesShown, names.size()); ++i) shown.push_back("'" + names[i] + "'");
  std::string text = fmt::format("{}", fmt::join(shown, ", "));
  return names.size() > kNamesShown ? text + fmt::format(" and {} more", names.size() - kNamesShown) : text;
}

std::vector<SelectedObject> chosen_objects(const Catalog& catalog, const SelectionOptions& options) {
  SelectionOptions keeping = options;
  keeping.keep_objects = true;
  return choose(catalog, keeping).objects;
}

void refuse_objects(const Catalog& catalog, const Options& options, const Format& format) {
  if (format.traits.objects || !options.selection.keep_objects || catalog.objects.empty()) return;
  std::vector<std::string> names;
  for (const SelectedObject& object : chosen_objects(catalog, options.selection)) names.emplace_back(object.name);
  if (names.empty()) return;
  throw Error(ErrorCode::kUnsupported, fmt::format("{} cannot hold objects: {}", format.traits.name, first_few(names)))
      .because(fmt::format("the source holds {} value{} that {} no tensor{}", names.size(),
                           names.size() == 1 ? "" : "s", names.size() == 1 ? "is" : "are",
                           names.size() == 1 ? "" : "s"))
      .hint(repeat_command(options, "--objects drop"));
}

CopyJob make_job(const Session& session, const Options& options, const OpenSource& source, const TargetForm& form,
                 const Layout& layout) {
  CopyJob job;
  job.reader = source.reader.get();
  job.selection = options.selection;
  job.layout = layout;
  job.traits = form.format->traits;
  WriteOptions write;
  write.single_file = form.single_file;
  write.base_name = base_name(options.output);
  job.make_writer = [format = form.format, write](const Catalog&) { return format->make_writer(write); };
  job.destination = options.output;
  job.sources = source.paths;
  if (!options.layout.like.empty()) job.sources.push_back(options.layout.like);
  if (!options.layout.layout.empty()) job.sources.push_back(options.layout.layout);
  job.output = {!form.single_file, options.force, !options.no_fsync};
  job.threads = worker_count(options);
  job.max_memory_bytes = parse_size(options.max_memory, "--max-memory");
  job.dry_run = options.dry_run;
  job.stop = session.stop;
  return job;
}

CopyResult run_job(Session& session, const Options& options, const CopyJob& job, Progress& progress, Log& log) {
  ProgressMeter meter(session, options, options.verb, [&] { return progress.bytes_written.load(); });
  return run_copy_job(session.fs, job, progress, [&](const CopyResult& plan) {
    meter.set_total(plan.bytes_to_write);
    log.info(fmt::format("plan: {} tensors into {} files, read {}, write {}", plan.tensors, plan.files.size(),
                         human_bytes(plan.bytes_to_read), human_bytes(plan.bytes_to_write)));
    log.debug(fmt::format("plan: {} copies in {} tiles, {} of memory, {} threads", plan.copies, plan.tiles,
                          human_bytes(plan.memory_bytes), job.threads));
  });
}

}  // namespace

int run_copy(Session& session, const Options& options) {
  const auto start = std::chrono::steady_clock::now();
  Log log(session, options);
  TargetForm form = choose_form(options);
  OpenSource source = open_source(session, options, options.sources, log);
  if (form.format == nullptr) form.format = source.format;
  const ChosenLayout layout = choose_layout(session, options, form, log);
  const CopyJob job = make_job(session, options, source, form, layout.layout);
  check_destination(session.fs, job.destination, job.sources, job.output);
  refuse_objects(source.catalog(), options, *form.format);
  if (options.selection.keep_objects) source.reader->load_objects();
  refuse_obstacles(source.catalog(), options.selection, options, "written");
  check_include({&source.catalog()}, options.selection);
  Progress progress;
  CopyResult result = run_job(session, options, job, progress, log);
  if (const std::int64_t overflows = progress.cast_overflows.load(); overflows > 0) {
    result.warnings.push_back(fmt::format("--cast: {} values are too large for their new dtype", overflows));
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
