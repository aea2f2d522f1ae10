#include "libshard/stores/object_output.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <mutex>
#include <set>
#include <string_view>
#include <utility>

#include "libshard/core/digest.h"
#include "libshard/core/error.h"
#include "libshard/core/parallel.h"
#include "libshard/core/split.h"
#include "libshard/io/url_path.h"
#include "libshard/stores/object_part.h"
#include "libshard/stores/part_layout.h"
#include "libshard/stores/upload_lock.h"

namespace shard {

namespace {

constexpr std::int64_t kLeastPart = 8 << 20, kPartStep = 4 << 20, kMostParts = 9'000;
constexpr std::int64_t kMostKept = 1 << 20;  ///< Bytes of a file that waits in memory for the commit.
constexpr std::chrono::seconds kAbortTime{5};

/// The destination without slashes at its end. `cannot` begins the message. \throws Error kInvalidArgument
std::string checked_destination(std::string destination, std::string_view cannot = "cannot write") {
  while (destination.ends_with('/')) destination.pop_back();
  const std::size_t root = root_bytes(destination);
  if (destination.size() <= root + 1) {
    throw Error(ErrorCode::kInvalidArgument, fmt::format("{}: the URL is a whole bucket", cannot))
        .in_file(destination)
        .expected("a name in the bucket");
  }
  const auto is_bad = [](std::string_view part) { return part.empty() || part == "." || part == ".."; };
  if (std::ranges::any_of(split(std::string_view(destination).substr(root + 1), '/'), is_bad)) {
    throw Error(ErrorCode::kInvalidArgument, fmt::format("{}: the URL has a part that is empty, '.' or '..'", cannot))
        .in_file(destination);
  }
  return destination;
}

/// \throws Error kExists
void check_url_overlap(const std::string& destination, std::string source) {
  if (!is_url(source)) return;
  while (source.ends_with('/')) source.pop_back();
  const bool is_same = source == destination;
  if (!is_same && !source.starts_with(destination + "/") && !destination.starts_with(source + "/")) return;
  throw Error(ErrorCode::kExists, is_same ? "cannot write: the destination is the source"
                                          : "cannot write: the destination and the source contain one another")
      .in_file(destination)
      .found(source);
}

/// The order in which objects are completed: those that make others a checkpoint come last.
int rank_of_name(std::string_view path) {
  const std::string_view name = path.substr(path.rfind('/') + 1);
  if (name == ".metadata" || name == "latest" || name == "metadata.json" || name == "master.h5") return 2;
  if (name.ends_with(".index.json")) return 2;
  return name == "shardctl.manifest.json" ? 1 : 0;
}

bool is_marker(std::string_view path) { return rank_of_name(path) == 2; }

class ObjectLeft final : public LeftOutput {
 public:
  ObjectLeft(UploadNote found, std::string found_etag) : note(std::move(found)), etag(std::move(found_etag)) {}
  const std::vector<OutputNote>& notes() const override { return none_; }
  bool compares_content() const override { return true; }

  UploadNote note;
  std::string etag;

 private:
  std::vector<OutputNote> none_;
};

Error exists(const std::string& url) {
  return Error(ErrorCode::kExists, "the destination already exists").in_file(url).suggest(Remedy::kReplaceDestination);
}

class ObjectOutput final : public Output {
 public:
  ObjectOutput(const ObjectStore& store, std::string destination, const ObjectOutputOptions& options,
               std::shared_ptr<KeptFiles> kept)
      : store_(store),
        destination_(std::move(destination)),
        options_(options),
        kept_(std::move(kept)),
        lock_(store, destination_) {}
  ~ObjectOutput() override { abort(); }

  /// Takes the lock and begins an upload of each file.
  void begin(std::span<const OutputFile> files, bool is_folder, const ObjectLeft* left) {
    is_folder_ = is_folder;
    if (left != nullptr) {
      take_up(*left, files);
    } else {
      add_files(files);
      take_lock();
    }
    begin_uploads();
    lock_.record();
  }

  std::vector<std::byte> token() const override {
    return OutputToken{lock_.note().text(), is_folder_, is_continued_, completed_}.bytes();
  }

  void accept(std::span<const std::byte> receipt) override {
    for (const auto& [url, parts] : parts_of_receipt(receipt)) {
      if (parts.empty()) continue;
      std::vector<StoredPart>& all = parts_[url];
      const auto next = std::ranges::upper_bound(all, parts.front().number, {}, &StoredPart::number);
      all.insert(next, parts.begin(), parts.end());
    }
  }

  void prepare() override {
    for (const UploadNote::File& file : lock_.note().files) check_parts(file);
    lock_.check_held();
    if (!is_folder_ && !options_.force && !is_continued_) check_companion_absent();
    is_prepared_ = true;
  }

  void commit() override {
    if (!is_prepared_) prepare();
    try {
      const std::vector<std::string> old = options_.force ? old_objects() : std::vector<std::string>();
      if (options_.force) remove_old_marker(old);
      complete_all();
      is_over_ = true;
      clean_up(old);
    } catch (...) {
      if (!is_over_) take_back_some();
      throw;
    }
  }

  void take_back() override {
    for (const std::string& url : done_) store_.ask({.act = ObjectAct::kRemove, .url = url});
  }

  void leave() noexcept override { lock_.release(); }

  void abort() noexcept override {
    if (!lock_.is_held() || is_over_) return;
    try {
      const auto end = std::chrono::steady_clock::now() + kAbortTime;
      for_each_index(lock_.note().files.size(), options_.connections, [&](std::size_t i) {
        const UploadNote::File& file = lock_.note().files[i];
        if (file.upload.empty() || std::chrono::steady_clock::now() > end) return;
        store_.ask({.act = ObjectAct::kAbort, .url = url_of(file), .upload = file.upload, .is_cleanup = true});
      });
      for (const auto& [path, etag] : completed_) {
        store_.ask({.act = ObjectAct::kRemove, .url = destination_ + path, .is_cleanup = true});
      }
      drop_strangers(true, true);
      if (std::chrono::steady_clock::now() <= end) lock_.remove();
    } catch (...) {  // A later run finds the uploads by the lock.
    }
    lock_.release();
  }

 private:
  std::string url_of(const UploadNote::File& file) const { return destination_ + file.path; }
  void say(const std::string& text) const {
    if (options_.says) options_.says(text);
  }

  void add_files(std::span<const OutputFile> files) {
    std::int64_t kept = 0;
    for (const OutputFile& file : files) {
      if (is_folder_) check_path(file.path);
      const std::int64_t part = part_bytes_of(file.bytes);
      if (part > kLeastPart && part > options_.memory_bytes) throw too_large(file, part);
      lock_.note().files.push_back({end_of_url(file, is_folder_), file.bytes, part});
      const bool is_kept = file.is_roots && file.bytes <= kMostKept && kept + file.bytes <= options_.memory_bytes / 4;
      if (is_kept) kept += file.bytes;
      keeps_.push_back(is_kept || file.bytes == 0);
    }
  }

  void check_path(const std::string& path) const {
    try {
      static_cast<void>(parts_below(destination_, path));
    } catch (const Error&) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("cannot write '{}': it is not a file below the destination", path))
          .in_file(destination_);
    }
  }

  Error too_large(const OutputFile& file, std::int64_t part) const {
    return Error(ErrorCode::kInvalidArgument, "cannot write the object: its parts do not fit into the memory limit")
        .in_file(destination_ + end_of_url(file, is_folder_))
        .expected(fmt::format("at least {} bytes for one part of an object of {} bytes", part, file.bytes))
        .found(options_.memory_bytes)
        .suggest(Remedy::kMoreMemory);
  }

  void take_lock() {
    if (lock_.take(options_.force)) say(fmt::format("removed the uploads of an interrupted run to {}", destination_));
    if (options_.force) {
      remove_uploads_of_others();
    } else {
      lock_.check_conditions();
      check_all_absent();
    }
  }

  void check_all_absent() const {
    if (!old_objects().empty()) throw exists(destination_);
    if (!is_folder_) check_companion_absent();
  }

  void check_companion_absent() const {
    const std::string url = destination_ + std::string(kCompanionSuffix);
    if (store_.ask({.act = ObjectAct::kLook, .url = url}).outcome != ObjectOutcome::kAbsent) throw exists(url);
  }

  /// All objects at the destination and below it.
  std::vector<std::string> old_objects() const {
    std::vector<std::string> urls;
    for (const BucketObject& each : store_.ask({.act = ObjectAct::kList, .url = destination_}).objects) {
      urls.push_back(each.url);
    }
    if (store_.ask({.act = ObjectAct::kLook, .url = destination_}).outcome != ObjectOutcome::kAbsent) {
      urls.push_back(destination_);
    }
    return urls;
  }

  // ---- Uploads.

  void begin_uploads() {
    keeps_.resize(lock_.note().files.size());
    for_each_index(lock_.note().files.size(), options_.connections, [this](std::size_t i) {
      UploadNote::File& file = lock_.note().files[i];
      if (keeps_[i] || !file.upload.empty() || completed_.contains(file.path)) return;
      const ObjectAnswer answer = store_.ask({.act = ObjectAct::kBegin, .url = url_of(file), .run = lock_.note().run});
      file.upload = answer.text;
      file.has_checksums = answer.has_checksums;
    });
  }

  void remove_uploads_of_others() {
    const auto uploads = store_.ask({.act = ObjectAct::kUploads, .url = destination_}).objects;
    for_each_index(uploads.size(), options_.connections, [&](std::size_t i) {
      store_.ask({.act = ObjectAct::kAbort, .url = uploads[i].url, .upload = uploads[i].upload});
    });
  }

  /// Continues the interrupted run under its name, so that its completed objects are this run's.
  void take_up(const ObjectLeft& left, std::span<const OutputFile> files) {
    check_same_files(left.note, files);
    lock_.take_up(left.note, left.etag);
    is_continued_ = true;
    std::mutex mutex;
    for_each_index(lock_.note().files.size(), options_.connections, [&](std::size_t i) {
      UploadNote::File& file = lock_.note().files[i];
      if (file.upload.empty()) return;
      const ObjectAnswer there = store_.ask({.act = ObjectAct::kParts, .url = url_of(file), .upload = file.upload});
      if (there.outcome == ObjectOutcome::kDone && !there.parts.empty()) return;
      const ObjectAnswer object = store_.ask({.act = ObjectAct::kLook, .url = url_of(file)});
      if (object.outcome == ObjectOutcome::kDone && object.objects.front().run == lock_.note().run) {
        const std::scoped_lock lock(mutex);
        completed_[file.path] = object.objects.front().etag;
      } else if (there.outcome == ObjectOutcome::kAbsent) {
        file.upload.clear();
      }
    });
    drop_strangers(false, false);
  }

  /// The job may have changed, but the files that were begun must be its files. Their content is compared later.
  void check_same_files(const UploadNote& note, std::span<const OutputFile> files) {
    std::map<std::string, std::int64_t> now, before;
    for (const OutputFile& file : files) now[end_of_url(file, is_folder_)] = file.bytes;
    for (const UploadNote::File& file : note.files) {
      before[file.path] = file.bytes;
      keeps_.push_back(file.upload.empty() && keeps_file(files, file));
    }
    if (now == before) return;
    throw Error(ErrorCode::kInvalidArgument, "cannot resume: the interrupted run was writing a different output")
        .in_file(destination_)
        .expected(fmt::format("{} files as in {}", before.size(), note_url(destination_)))
        .found(fmt::format("{} files, or different sizes", now.size()))
        .suggest(Remedy::kReplaceDestination);
  }

  /// The interrupted run may have been killed before its uploads were begun.
  bool keeps_file(std::span<const OutputFile> files, const UploadNote::File& noted) const {
    const auto file =
        std::ranges::find_if(files, [&](const OutputFile& each) { return end_of_url(each, is_folder_) == noted.path; });
    return noted.bytes == 0 || (file != files.end() && file->is_roots && noted.bytes <= kMostKept);
  }

  /// Removes uploads of this output's objects that the note does not name, because their names were lost with an
  /// answer.
  void drop_strangers(bool is_quiet, bool is_cleanup) {
    std::set<std::string> known, urls;
    for (const UploadNote::File& file : lock_.note().files) {
      known.insert(file.upload);
      urls.insert(url_of(file));
    }
    ObjectAnswer answer;
    try {
      answer = store_.ask({.act = ObjectAct::kUploads, .url = destination_, .is_cleanup = is_cleanup});
      for (const BucketObject& each : answer.objects) {
        if (known.contains(each.upload) || !urls.contains(each.url)) continue;
        store_.ask({.act = ObjectAct::kAbort, .url = each.url, .upload = each.upload, .is_cleanup = is_cleanup});
      }
    } catch (const Error&) {
      if (!is_quiet) throw;
    }
  }

  // ---- The commit.

  /// The ranks must have stored all parts of the file.
  void check_parts(const UploadNote::File& file) {
    if (file.upload.empty() || completed_.contains(file.path)) return;
    std::int64_t bytes = 0;
    int number = 0;
    for (const StoredPart& part : parts_[url_of(file)]) {
      if (part.number != ++number || part.bytes <= 0) break;
      bytes += part.bytes;
    }
    if (bytes == file.bytes) return;
    throw Error(ErrorCode::kResource, "cannot write: the store does not have all parts")
        .in_file(url_of(file))
        .expected(file.bytes)
        .found(bytes);
  }

  void complete_all() {
    std::vector<std::size_t> first, last;
    for (std::size_t i = 0; i < lock_.note().files.size(); ++i) {
      (is_folder_ && rank_of_name(lock_.note().files[i].path) == 0 ? first : last).push_back(i);
    }
    // Without a marker, the last file in order completes the checkpoint. A single file comes before its companion.
    std::ranges::stable_sort(last, {}, [&](std::size_t i) {
      return is_folder_ ? rank_of_name(lock_.note().files[i].path)
                        : static_cast<int>(lock_.note().files[i].path.size());
    });
    for_each_index(first.size(), options_.connections, [&](std::size_t i) { complete(first[i]); });
    for (const std::size_t i : last) complete(i);
  }

  void complete(std::size_t i) {
    const UploadNote::File& file = lock_.note().files[i];
    if (completed_.contains(file.path)) return;
    ObjectRequest request{.url = url_of(file), .run = lock_.note().run};
    request.condition = options_.force ? ObjectCondition::kAny : ObjectCondition::kAbsent;
    if (file.upload.empty()) {
      request.act = ObjectAct::kPut;
      const std::scoped_lock lock(kept_->mutex);
      request.body = kept_->content[file.path];
      request.crc32c = crc32c(request.body);
      if (std::ssize(request.body) != file.bytes) throw no_clear_answer(request.url, "its bytes were not written");
    } else {
      request.act = ObjectAct::kComplete;
      request.upload = file.upload;
      request.parts = parts_.at(request.url);
    }
    {
      const std::scoped_lock lock(done_mutex_);
      done_.push_back(request.url);
    }
    settle(request);
  }

  /// Sends a request until the object is this run's. \throws Error kExists  a different run has written it
  void settle(ObjectRequest& request) {
    std::string why;
    for (request.attempt = 1; request.attempt <= kUploadAttempts; ++request.attempt) {
      const ObjectAnswer answer = store_.ask(request);
      if (answer.outcome == ObjectOutcome::kDone) return;
      const ObjectAnswer there = store_.ask({.act = ObjectAct::kLook, .url = request.url});
      const bool is_there = there.outcome == ObjectOutcome::kDone;
      const bool is_ours = is_there && there.objects.front().run == lock_.note().run;
      if (is_ours && is_continued_ && request.act == ObjectAct::kPut && answer.outcome == ObjectOutcome::kRefused) {
        request.condition = ObjectCondition::kSame;  // The interrupted run's: replaced by the same, or by better bytes.
        request.etag = there.objects.front().etag;
        continue;
      }
      if (is_ours) return;  // It was done, only the answer was lost.
      if (is_there && request.condition != ObjectCondition::kAny) throw exists(request.url);
      why = answer.text.empty() ? "the upload is gone" : answer.text;
    }
    throw no_clear_answer(request.url, why);
  }

  /// Without its marker, the old destination is not a checkpoint, so no reader finds a mixture of old and new.
  void remove_old_marker(const std::vector<std::string>& old) {
    std::vector<std::string> first;
    for (const std::string& url : old) {
      if (is_folder_ && url != destination_ && is_marker(url)) first.push_back(url);
    }
    if (!is_folder_) {  // The old object is replaced in one step, but not its companion, nor a folder of its name.
      std::ranges::copy_if(old, std::back_inserter(first),
                           [this](const std::string& url) { return url != destination_; });
      first.push_back(destination_ + std::string(kCompanionSuffix));
    } else if (first.empty()) {
      first = old;
    }
    if (is_folder_ && !first.empty()) {
      say(fmt::format("replacing {}: {} removed first, so it is not a checkpoint until this run ends", destination_,
                      first.size() == 1 ? first.front().substr(destination_.size()) + " is"
                                        : fmt::format("{} objects are", first.size())));
    }
    for (const std::string& url : first) store_.ask({.act = ObjectAct::kRemove, .url = url});
  }

  /// Called after the commit. A later run finds anything that this cannot remove.
  void clean_up(const std::vector<std::string>& old) noexcept {
    try {
      std::set<std::string> made;
      for (const UploadNote::File& file : lock_.note().files) made.insert(url_of(file));
      for (const std::string& url : old) {
        if (!made.contains(url)) store_.ask({.act = ObjectAct::kRemove, .url = url, .is_cleanup = true});
      }
      drop_strangers(true, true);
      lock_.remove();
    } catch (const std::exception& error) {
      say(fmt::format("{} is complete, but something beside it could not be removed: {}", destination_, error.what()));
    }
  }

  /// Removes this run's objects after a failed commit, because they are useless without a marker.
  void take_back_some() noexcept {
    for (const std::string& url : done_) {
      try {
        const ObjectAnswer there = store_.ask({.act = ObjectAct::kLook, .url = url, .is_cleanup = true});
        if (there.outcome != ObjectOutcome::kDone || there.objects.front().run != lock_.note().run) continue;
        store_.ask({.act = ObjectAct::kRemove, .url = url, .is_cleanup = true});
      } catch (...) {
      }
    }
    done_.clear();
  }

  const ObjectStore& store_;
  const std::string destination_;
  const ObjectOutputOptions options_;
  const std::shared_ptr<KeptFiles> kept_;
  bool is_folder_ = true;
  UploadLock lock_;
  std::vector<std::uint8_t> keeps_;               ///< By file of the note: whether it waits in memory.
  std::map<std::string, std::string> completed_;  ///< By the interrupted run: ETags by the ends of URLs.
  PartsByUrl parts_;                              ///< From the ranks' receipts.
  std::mutex done_mutex_;
  std::vector<std::string> done_;  ///< Objects that this run has begun to complete.
  bool is_continued_ = false, is_prepared_ = false, is_over_ = false;
};

class ObjectOutputStore final : public OutputStore {
 public:
  ObjectOutputStore(const ObjectStore& store, std::string destination, const ObjectOutputOptions& options)
      : store_(store), destination_(std::move(destination)), options_(options) {
    if (!options_.is_root) return;
    const bool exists_now =
        !store_.ask({.act = ObjectAct::kList, .url = destination_}).objects.empty() ||
        store_.ask({.act = ObjectAct::kLook, .url = destination_}).outcome != ObjectOutcome::kAbsent;
    if (exists_now && !options_.force && !options_.resume) throw exists(destination_);
  }

  OutputTraits traits() const override {
    return {.whole_files = true, .passes_blocks = true, .has_receipts = true, .has_notes = false};
  }
  std::int64_t free_bytes() const override { return INT64_MAX; }
  std::string place() const override { return destination_; }
  std::int64_t share_bytes(std::int64_t file_bytes) const override { return part_bytes_of(file_bytes); }
  std::vector<ByteRange> would_copy(std::int64_t file_bytes, std::span<const SourceRun> runs) const override {
    std::vector<SourceRun> offered;
    std::ranges::copy_if(runs, std::back_inserter(offered),
                         [this](const SourceRun& run) { return is_copied_by_store(run.source, destination_); });
    const PartLayout layout = layout_of_runs(file_bytes, part_bytes_of(file_bytes), offered);
    std::vector<ByteRange> ranges;
    for (const PartLayout::Copy& copy : layout.copies) {
      const auto part = static_cast<std::size_t>(copy.part);
      ranges.push_back({layout.begins[part], layout.begins[part + 1]});
    }
    return ranges;
  }

  std::unique_ptr<Output> begin(std::span<const OutputFile> files, bool is_folder,
                                std::unique_ptr<LeftOutput> left) override {
    auto output = std::make_unique<ObjectOutput>(store_, destination_, options_, kept_);
    output->begin(files, is_folder, dynamic_cast<const ObjectLeft*>(left.get()));
    return output;
  }

  std::unique_ptr<LeftOutput> find_left() override {
    ObjectAnswer there = store_.ask({.act = ObjectAct::kRead, .url = note_url(destination_)});
    if (there.outcome != ObjectOutcome::kDone) return nullptr;
    auto note = parse_upload_note(there.text);
    if (!note)
      throw UploadLock(store_, destination_).busy().because("it is not the record of an output that can be continued");
    return std::make_unique<ObjectLeft>(*std::move(note), there.etag);
  }

  std::unique_ptr<Output> begin_removal() override { return nullptr; }

  std::unique_ptr<OutputPart> part(std::span<const std::byte> token) override {
    const UploadLimits limits{.memory_bytes = options_.memory_bytes, .senders = options_.connections};
    return object_part(store_, destination_, OutputToken::of_bytes(token), kept_, limits, options_.says);
  }

 private:
  const ObjectStore& store_;
  const std::string destination_;
  const ObjectOutputOptions options_;
  const std::shared_ptr<KeptFiles> kept_ = std::make_shared<KeptFiles>();
};

}  // namespace

std::int64_t part_bytes_of(std::int64_t object_bytes) {
  const std::int64_t least = (object_bytes + kMostParts - 1) / kMostParts;
  return std::max(kLeastPart, (least + kPartStep - 1) / kPartStep * kPartStep);
}

std::unique_ptr<OutputStore> object_output(const ObjectStore& store, const std::string& destination,
                                           const std::vector<std::string>& sources,
                                           const ObjectOutputOptions& options) {
  std::string checked = checked_destination(destination);
  for (const std::string& source : sources) check_url_overlap(checked, source);
  return std::make_unique<ObjectOutputStore>(store, std::move(checked), options);
}

std::vector<LeftUpload> left_uploads(const ObjectStore& store, const std::string& destination) {
  const std::string url = checked_destination(destination, "cannot list uploads");
  std::vector<LeftUpload> left;
  for (const BucketObject& each : store.ask({.act = ObjectAct::kUploads, .url = url, .is_reading = true}).objects) {
    LeftUpload& upload = left.emplace_back(LeftUpload{each.url, each.upload});
    const ObjectAnswer parts =
        store.ask({.act = ObjectAct::kParts, .url = each.url, .upload = each.upload, .is_reading = true});
    upload.parts = std::ssize(parts.parts);
    for (const StoredPart& part : parts.parts) upload.bytes += part.bytes;
  }
  return left;
}

bool has_upload_lock(const ObjectStore& store, const std::string& destination) {
  const std::string url = note_url(checked_destination(destination));
  return store.ask({.act = ObjectAct::kLook, .url = url, .is_reading = true}).outcome != ObjectOutcome::kAbsent;
}

void remove_uploads(const ObjectStore& store, const std::string& destination, const std::vector<LeftUpload>& uploads) {
  for (const LeftUpload& each : uploads) {
    store.ask({.act = ObjectAct::kAbort, .url = each.url, .upload = each.name});
  }
  store.ask({.act = ObjectAct::kRemove, .url = note_url(checked_destination(destination))});
}

}  // namespace shard
