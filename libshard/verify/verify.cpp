#include "libshard/verify/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "libshard/core/budget.h"
#include "libshard/core/error.h"
#include "libshard/core/parallel.h"
#include "libshard/repair/lost_note.h"
#include "libshard/verify/data_pass.h"

namespace shard {

namespace {

/// Receives one file's report.
class FileReport final : public ContainerReport {
 public:
  explicit FileReport(Findings& findings) : findings_(findings) {}
  void on_crc_run(CrcRange bytes) override {
    if (bytes.decoded) {
      decoded.push_back(std::move(bytes));
    } else if (bytes.crc32) {
      runs.push_back({bytes.offset, bytes.bytes, *bytes.crc32, std::move(bytes.name)});
    }
  }
  void on_crcs_checked(std::int64_t crc32s) override { crc32s_compared += crc32s; }
  void on_global(std::string_view name) override { globals.emplace(name); }
  Findings& findings() override { return findings_; }

  std::vector<StoredCrc> runs;
  std::vector<CrcRange> decoded;
  std::set<std::string> globals;
  std::int64_t crc32s_compared = 0;

 private:
  Findings& findings_;
};

/// Whether this is a top-level name whose value all ranks of one checkpoint share.
bool tells_the_save(std::string_view name) {
  constexpr std::array<std::string_view, 6> kNames{"step", "epoch", "iteration", "global_step", "global_steps", "iter"};
  return std::ranges::find(kNames, name) != kNames.end();
}

}  // namespace

struct Verification::Impl {
  const VerifyJob& job;
  Group& group;
  VerifyFindings& found;
  Progress& progress;
  VerifyFindings unheard{{}};  ///< All ranks see the same metadata, so only rank 0 reports findings about it.
  Findings& metadata;          ///< Refers to `unheard` or to the shared findings.
  VerifyCounts counts;
  std::set<std::string> globals;
  Catalog nothing;
  PassParts parts;
  std::optional<StoredCrcs> sums;
  std::optional<ManifestCheck> manifest;
  std::optional<ReplicaCompare> replicas;
  std::optional<DataPass> pass;
  std::mutex mutex;

  Impl(const VerifyJob& what, Group& ranks, VerifyFindings& findings, Progress& counters)
      : job(what), group(ranks), found(findings), progress(counters), metadata(ranks.rank() == 0 ? findings : unheard) {
    if (ranks.rank() > 0) findings.clear();
  }

  const Catalog& catalog() const { return job.reader == nullptr ? nothing : job.reader->catalog(); }

  /// Runs `work`. An error about the source becomes a finding.
  template <class Work>
  void guarded(const Work& work) {
    try {
      work();
    } catch (const Error& error) {
      take_finding(metadata, error);
    }
  }

  /// Locates all tensors together, which is fast. If this fails, locates them one by one, so that each failure is
  /// reported.
  void locate_all() {
    std::vector<std::uint32_t> tensors;
    for (std::uint32_t i = 0; i < catalog().tensors.size(); ++i) {
      if (!catalog().tensors[i].damaged) tensors.push_back(i);
    }
    try {
      job.reader->locate(tensors);
    } catch (const Error&) {
      for (const std::uint32_t& tensor : tensors) locate_one(tensor);
    }
  }

  void locate_one(const std::uint32_t& tensor) {
    try {
      job.reader->locate({&tensor, 1});
    } catch (Error& error) {
      if (error.tensor().empty()) error.of_tensor(catalog().tensors[tensor].name);
      take_finding(metadata, error);
    }
  }

  void check_saves() {
    const std::vector<Object>& objects = catalog().objects;
    for (std::size_t i = 1; i < objects.size(); ++i) {
      if (objects[i].name != objects[i - 1].name || !tells_the_save(objects[i].name)) continue;
      const Value *a = objects[i - 1].value, *b = objects[i].value;
      if (a == nullptr || b == nullptr || a->kind != ValueKind::kInt || b->kind != ValueKind::kInt) continue;
      if (a->number == b->number) continue;
      metadata.report(
          Error(ErrorCode::kCorruption, fmt::format("ranks {} and {} were saved with different values of '{}'",
                                                    objects[i - 1].rank, objects[i].rank, objects[i].name))
              .in_file(path_of_rank(objects[i].rank))
              .of_kind(FindingKind::kMixedSave)
              .of_rank(objects[i].rank)
              .expected(a->number)
              .found(b->number)
              .because("the files come from different saves"));
    }
  }

  /// The only file of a rank; empty if it has several.
  std::string_view path_of_rank(int rank) const {
    const std::vector<File>& files = catalog().files;
    const auto file = std::ranges::find(files, rank, &File::rank);
    if (rank < 0 || std::ranges::count(files, rank, &File::rank) != 1) return {};
    return file->path;
  }

  /// Warns about tensors with one name that are each rank's own, because their values differ.
  void warn_of_ranks() {
    const std::vector<Tensor>& tensors = catalog().tensors;
    for (std::size_t begin = 0, end = 0; begin < tensors.size(); begin = end) {
      for (end = begin + 1; end < tensors.size() && tensors[end].name == tensors[begin].name;) ++end;
      if (end - begin < 2 || tensors[begin].rank < 0) continue;
      metadata.warn(Error(ErrorCode::kCorruption, fmt::format("{} ranks have different values", end - begin))
                        .of_tensor(tensors[begin].name)
                        .of_kind(FindingKind::kReplicaMismatch)
                        .because("each rank has its own, or the ranks were not in step when they saved"));
    }
  }

  /// The compressed storages of each file.
  std::map<std::uint32_t, std::vector<std::uint32_t>> compressed() const {
    std::map<std::uint32_t, std::vector<std::uint32_t>> by_file;
    for (std::uint32_t i = 0; i < catalog().storages.size(); ++i) {
      const Storage& storage = catalog().storages[i];
      if (!storage.plain && storage.offset >= 0) by_file[storage.file].push_back(i);
    }
    return by_file;
  }

  /// Reports and drops the largest decoded runs until the rest is in proportion to the files. Items state their sizes
  /// themselves, independent of the catalog's tensors.
  void limit_decoded() {
    double stored = 0, decoded = 0;
    for (const File& file : catalog().files) stored += static_cast<double>(file.bytes);
    for (const DecodedRun& run : parts.decoded) decoded += static_cast<double>(run.bytes.bytes);
    const double limit = std::max(static_cast<double>(kNamedFloor), static_cast<double>(kNamedPerFileByte) * stored);
    if (decoded <= limit) return;
    std::ranges::stable_sort(parts.decoded, {}, [](const DecodedRun& run) { return run.bytes.bytes; });
    while (decoded > limit) {
      const DecodedRun& largest = parts.decoded.back();
      metadata.report(
          Error(ErrorCode::kCorruption,
                fmt::format("{} claims {} bytes, out of proportion to the files",
                            largest.bytes.name.empty() ? "a compressed run" : largest.bytes.name, largest.bytes.bytes))
              .in_file(catalog().files[largest.file].path)
              .of_kind(FindingKind::kOutOfBounds)
              .because("such a file may be built to exhaust time. It is not decoded."));
      decoded -= static_cast<double>(largest.bytes.bytes);
      parts.decoded.pop_back();
    }
  }

  void check_containers(const std::stop_token& stop) {
    sums.emplace(catalog(), found);
    const auto by_file = compressed();
    for_each_index(catalog().files.size(), job.threads, stop, [&]() -> IndexWorker {
      return [&](std::size_t file) { check_container(static_cast<std::uint32_t>(file), by_file); };
    });
    limit_decoded();
    std::ranges::sort(parts.decoded, {}, [](const DecodedRun& run) { return std::pair(run.file, run.bytes.offset); });
  }

  void check_container(std::uint32_t file, const std::map<std::uint32_t, std::vector<std::uint32_t>>& compressed) {
    FileReport report(metadata);
    bool is_known = true;
    std::string name = catalog().files[file].path;
    try {
      is_known = job.reader->check_container(file, report);
      const bool has_sums = !report.runs.empty() || !report.decoded.empty();
      if (has_sums) name = job.reader->file(file)->name();  // The catalog may have only a part of the path.
    } catch (Error& error) {
      const std::string& path = catalog().files[file].path;
      if (!found.mentions(path)) take_finding(metadata, error.in_file(path));
    }
    const auto storages = compressed.find(file);
    for (std::size_t i = 0; !is_known && storages != compressed.end() && i < storages->second.size(); ++i) {
      const std::uint32_t index = storages->second[i];
      const Storage& storage = catalog().storages[index];
      report.decoded.push_back({.offset = storage.offset,
                                .bytes = storage.bytes,
                                .decoded = [reader = job.reader, index] { return reader->bytes_of(index); }});
    }
    const bool has_records = !report.runs.empty() || !report.decoded.empty() || report.crc32s_compared > 0;
    sums->set(file, std::move(name), std::move(report.runs));
    const std::scoped_lock lock(mutex);
    if (has_records) ++counts.containers;
    for (CrcRange& run : report.decoded) parts.decoded.push_back({file, std::move(run)});
    globals.merge(report.globals);
    if (group.rank() == 0) sums->count(report.crc32s_compared);
  }

  // ---- Reading.

  void list_files() {
    const std::vector<File>& files = catalog().files;
    for (std::uint32_t i = 0; i < files.size(); ++i) {
      try {
        const auto file = job.reader->file(i);
        parts.files.push_back({files[i].path, file->size(), i});
        warn_of_holes(*file, files[i].path);
      } catch (Error& error) {
        if (!found.mentions(files[i].path)) take_finding(metadata, error.replace_file(files[i].path));
      }
    }
    if (job.stated != nullptr) list_stated();
    if (job.hashes != nullptr) list_hashed();
  }

  void list_hashed() {
    std::map<std::string, std::size_t> known;
    for (std::size_t i = 0; i < parts.files.size(); ++i) known.emplace(parts.files[i].path, i);
    for (const auto& [path, hash] : job.hashes->files) {
      try {
        if (const auto file = known.find(path); file != known.end()) {
          parts.files[file->second].sha256 = hash;
        } else {
          const auto opened = job.hashes->store->open_below(job.hashes->folder, path);
          parts.files.push_back({path, opened->size(), kNoIndex, std::nullopt, hash});
        }
      } catch (Error& error) {
        if (!found.mentions(path)) take_finding(metadata, error.replace_file(path));
      }
    }
  }

  std::unique_ptr<RandomReader> open_other(const PassFile& file) const {
    if (file.stated) return job.stated->open(job.stated->manifest.files[*file.stated]);
    return job.hashes->store->open_below(job.hashes->folder, file.path);
  }

  /// Lists the data that an earlier repair could not recover. No other check finds it.
  void list_lost() try {
    const std::optional<LostNote> note = read_lost_note(catalog());
    if (!note) return;
    for (const Loss& loss : note->losses) {
      const bool is_file = loss.what == Loss::What::kFile;
      Error finding(ErrorCode::kCorruption, "a repair could not recover it: " + loss.why);
      finding.of_kind(is_file ? FindingKind::kMissingFile : FindingKind::kGap);
      if (!loss.name.empty()) finding.of_tensor(loss.name);
      if (!loss.file.empty()) finding.in_file(loss.file);
      metadata.tolerate(finding);
    }
    const std::int64_t unlisted = note->count - std::ssize(note->losses);
    if (unlisted == 0) return;
    Error finding(ErrorCode::kCorruption, fmt::format("a repair could not recover {} further items", unlisted));
    metadata.tolerate(finding.because("its note counts them and does not list them").of_kind(FindingKind::kGap));
  } catch (const Error& error) {
    metadata.tolerate(error);
  }

  void warn_of_holes(const RandomReader& file, const std::string& path) {
    const std::int64_t missing = file.size() - file.allocated_bytes(0, file.size());
    if (missing <= 0) return;
    metadata.warn(
        Error(ErrorCode::kCorruption, fmt::format("{} bytes of the file are holes, which read as zeros", missing))
            .in_file(path)
            .of_kind(FindingKind::kTruncated)
            .because("they were never written, or a copy skipped zeros"));
  }

  void list_stated() {
    manifest.emplace(*job.stated, metadata);
    const std::vector<ManifestFile>& stated = job.stated->manifest.files;
    const std::vector<bool> is_there = manifest->check_files();
    std::map<std::string_view, std::size_t> known;
    const bool is_one = job.stated->folder.empty();
    for (std::size_t i = 0; i < parts.files.size(); ++i) known.emplace(parts.files[i].path, i);
    for (std::size_t i = 0; i < stated.size(); ++i) {
      if (!is_there[i]) continue;
      const auto file = known.find(stated[i].path);
      if (is_one && !parts.files.empty()) {
        parts.files.front().stated = i;
      } else if (file != known.end()) {
        parts.files[file->second].stated = i;
      } else {
        parts.files.push_back({stated[i].path, job.stated->open(stated[i])->size(), kNoIndex, i});
      }
    }
  }

  void make_pass() {
    parts.reader = job.reader;
    parts.stated = job.stated;
    parts.findings = &found;
    parts.open_other = [this](const PassFile& file) { return open_other(file); };
    parts.manifest = manifest ? &*manifest : nullptr;
    parts.sums = sums ? &*sums : nullptr;
    if (job.reader != nullptr) {
      parts.pairs = replica_pairs(catalog());
      replicas.emplace(*job.reader, parts.pairs, job.max_memory_bytes, progress, found, job.ranks_may_differ);
      parts.replicas = &*replicas;
    }
    pass.emplace(parts, progress);
    counts.files = std::ssize(parts.files);
    for (const PassFile& file : parts.files) counts.bytes += file.bytes;
    counts.tensors = std::ssize(catalog().tensors);
    counts.chunks = std::ssize(catalog().chunks);
  }
};

Verification::Verification(const VerifyJob& job, Group& group, VerifyFindings& found, Progress& progress)
    : impl_(std::make_unique<Impl>(job, group, found, progress)) {}

Verification::~Verification() = default;

void Verification::prepare(const std::stop_token& stop) {
  if (impl_->job.reader != nullptr) {
    impl_->locate_all();
    impl_->guarded([&] { impl_->job.reader->load_objects(); });
    impl_->list_lost();
    impl_->check_saves();
    impl_->warn_of_ranks();
    impl_->check_containers(stop);
  }
  impl_->list_files();
  impl_->make_pass();
}

std::set<std::string> Verification::file_names() const {
  std::set<std::string> names;
  for (const File& file : impl_->catalog().files) names.insert(file.path);
  for (const PassFile& file : impl_->parts.files) names.insert(file.path);
  return names;
}

std::int64_t Verification::total_bytes() const { return impl_->pass->total_bytes(); }

void Verification::read(const std::stop_token& stop) {
  impl_->pass->run(impl_->group.rank(), impl_->group.size(), impl_->job.threads, stop);
}

void Verification::finish() {
  Impl& all = *impl_;
  if (all.sums) {
    all.sums->gather(all.group);
    all.counts.crc32s = all.sums->compared();
  }
  if (all.manifest) {
    all.manifest->gather(all.group);
    if (all.group.rank() == 0) all.manifest->report();
    all.counts.manifest_blocks = all.manifest->compared();
  }
  all.found.gather(all.group);
}

const VerifyCounts& Verification::counts() const { return impl_->counts; }

const std::set<std::string>& Verification::globals() const { return impl_->globals; }

}  // namespace shard
