#include "libshard/stores/object_output.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <map>
#include <mutex>
#include <set>
#include <string_view>
#include <utility>

#include "libshard/core/error.h"
#include "libshard/core/random_bytes.h"
#include "libshard/io/url_path.h"
#include "libshard/ranks/wire.h"
#include "libshard/stores/object_checks.h"
#include "libshard/stores/parallel_requests.h"
#include "libshard/stores/upload_note.h"
#include "libshard/stores/upload_parts.h"

namespace shard {

namespace {

constexpr std::int64_t kLeastPart = 8 << 20, kPartStep = 4 << 20, kMostParts = 9'000;
constexpr std::int64_t kMostKept = 1 << 20;  ///< Bytes of a file that waits in memory for the commit.
constexpr int kAttempts = 5;
constexpr std::chrono::seconds kAbortTime{5};

std::string random_name() {
  std::array<std::uint8_t, 12> bytes{};
  draw_random(std::as_writable_bytes(std::span(bytes)));
  std::string name;
  for (const std::uint8_t byte : bytes) name += fmt::format("{:02x}", byte);
  return name;
}

/// The destination without slashes at its end. \throws Error kInvalidArgument
std::string checked_destination(std::string destination) {
  while (destination.ends_with('/')) destination.pop_back();
  const std::size_t root = root_bytes(destination);
  if (destination.size() <= root + 1) {
    throw Error(ErrorCode::kInvalidArgument, "cannot write: the destination is a whole bucket")
        .in_file(destination)
        .expected("a name in the bucket");
  }
  const std::string key = destination.substr(root + 1);
  for (std::size_t begin = 0; begin <= key.size();) {
    const std::size_t end = std::min(key.find('/', begin), key.size());
    const std::string part = key.substr(begin, end - begin);
    if (part.empty() || part == "." || part == "..") {
      throw Error(ErrorCode::kInvalidArgument, "cannot write: the destination has a part that is empty, '.' or '..'")
          .in_file(destination);
    }
    begin = end + 1;
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

/// Small files of the root, which wait in memory. Shared by its part and its output.
struct KeptFiles {
  std::mutex mutex;
  std::map<std::string, std::vector<std::byte>> content;  ///< By the end of their URL.
};

class KeptFile final : public FileWriter {
 public:
  KeptFile(std::vector<std::byte>& bytes, const OutputFile& file) : bytes_(bytes), file_(file) {}
  void write_at(std::int64_t offset_bytes, std::span<const std::byte> data) override {
    if (offset_bytes < 0 || offset_bytes > std::ssize(bytes_) - std::ssize(data)) {
      throw Error(ErrorCode::kResource, "a write leads past the end of the object").in_file(file_.path);
    }
    std::ranges::copy(data, bytes_.begin() + offset_bytes);
  }
  void read_back(std::int64_t offset_bytes, std::span<std::byte> out) override {
    if (offset_bytes < 0 || offset_bytes > std::ssize(bytes_) - std::ssize(out)) throw cannot_read_back();
    std::copy_n(bytes_.begin() + offset_bytes, out.size(), out.begin());
  }
  void allocate(std::int64_t) override {}
  void sync() override {}
  void close() override {}

  void pass_blocks() {
    for (std::int64_t at = 0; file_.on_block && !is_passed_ && at < std::ssize(bytes_); at += kOutputBlock) {
      const auto count = static_cast<std::size_t>(std::min(kOutputBlock, std::ssize(bytes_) - at));
      file_.on_block(at / kOutputBlock, std::span(bytes_).subspan(static_cast<std::size_t>(at), count));
    }
    is_passed_ = true;
  }

 private:
  std::vector<std::byte>& bytes_;
  const OutputFile file_;
  bool is_passed_ = false;
};

/// The end of the URL of a file: nothing for a single one.
std::string end_of_url(const OutputFile& file, bool is_folder) {
  if (is_folder) return "/" + file.path;
  return file.is_beside ? file.path : std::string();
}

/// Everything that a rank's part needs, as the root's token carries it.
struct OutputToken {
  std::string note;
  bool is_folder = true, is_continued = false;
  std::map<std::string, std::string> completed{};  ///< The ETags of objects that the interrupted run completed.

  std::vector<std::byte> bytes() const {
    WireWriter out;
    out.text(note);
    out.number(is_folder ? 1 : 0);
    out.number(is_continued ? 1 : 0);
    for (const auto& [end, etag] : completed) {
      out.text(end);
      out.text(etag);
    }
    return out.take();
  }
  static OutputToken of_bytes(std::span<const std::byte> bytes) {
    WireReader in(bytes);
    OutputToken token;
    token.note = in.text();
    token.is_folder = in.number() != 0;
    token.is_continued = in.number() != 0;
    while (!in.at_end()) {
      const std::string end = in.text();
      token.completed[end] = in.text();
    }
    return token;
  }
};

using PartsByUrl = std::map<std::string, std::vector<StoredPart>>;

std::vector<std::byte> to_receipt(const PartsByUrl& parts) {
  WireWriter out;
  for (const auto& [url, all] : parts) {
    out.text(url);
    out.number(std::ssize(all));
    for (const StoredPart& part : all) {
      out.number(part.number);
      out.number(part.bytes);
      out.text(part.etag);
      out.text(part.crc32c);
    }
  }
  return out.take();
}

PartsByUrl parts_of_receipt(std::span<const std::byte> bytes) {
  PartsByUrl parts;
  for (WireReader in(bytes); !in.at_end();) {
    std::vector<StoredPart>& all = parts[in.text()];
    for (std::int64_t left = in.number(); left > 0; --left) {
      StoredPart& part = all.emplace_back();
      part.number = static_cast<int>(in.number());
      part.bytes = in.number();
      part.etag = in.text();
      part.crc32c = in.text();
    }
  }
  return parts;
}

class ObjectPart final : public OutputPart {
 public:
  ObjectPart(const ObjectStore& store, std::string destination, OutputToken token, std::shared_ptr<KeptFiles> kept,
             const ObjectOutputOptions& options)
      : store_(store),
        destination_(std::move(destination)),
        token_(std::move(token)),
        kept_(std::move(kept)),
        options_(options),
        parts_(store, {.memory_bytes = options.memory_bytes, .senders = options.connections}) {
    auto note = parse_upload_note(token_.note);
    if (!note) throw Error(ErrorCode::kPeer, "cannot find the output of a different rank: it has no uploads");
    note_ = *std::move(note);
  }

  FileWriter& create(const OutputFile& file) override {
    const std::string end = end_of_url(file, token_.is_folder);
    const auto noted = std::ranges::find(note_.files, end, &UploadNote::File::path);
    if (noted == note_.files.end() || noted->bytes != file.bytes) {
      throw Error(ErrorCode::kInternal, "a file was not declared when the output was begun")
          .in_file(destination_ + end);
    }
    const auto completed = token_.completed.find(end);
    if (noted->upload.empty() && completed == token_.completed.end()) return keep(file, end);
    UploadTarget target{.url = destination_ + end,
                        .upload = noted->upload,
                        .bytes = file.bytes,
                        .part_bytes = noted->part_bytes,
                        .has_checksums = noted->has_checksums};
    if (completed != token_.completed.end()) {
      target.completed = completed->second;
    } else if (token_.is_continued) {
      target.stored = store_.ask({.act = ObjectAct::kParts, .url = target.url, .upload = target.upload}).parts;
    }
    return parts_.add(std::move(target), file.on_block);
  }

  FileWriter& open(const std::string& path) override {
    throw Error(ErrorCode::kInternal, "only one rank can write to an object").in_file(path);
  }

  void pass_blocks() override {
    for (const auto& each : kept_writers_) each->pass_blocks();
    parts_.finish(true);
  }

  void finish() override {
    for (const auto& each : kept_writers_) each->pass_blocks();
    parts_.finish(false);
    if (token_.is_continued && options_.says) {
      options_.says(fmt::format("{} parts of the interrupted run were kept", parts_.kept_parts()));
    }
  }

  std::vector<std::byte> receipt() const override { return to_receipt(parts_.stored()); }

 private:
  FileWriter& keep(const OutputFile& file, const std::string& end) {
    const std::scoped_lock lock(kept_->mutex);
    std::vector<std::byte>& bytes = kept_->content[end];
    bytes.assign(static_cast<std::size_t>(file.bytes), std::byte{});
    kept_writers_.push_back(std::make_unique<KeptFile>(bytes, file));
    return *kept_writers_.back();
  }

  const ObjectStore& store_;
  const std::string destination_;
  const OutputToken token_;
  const std::shared_ptr<KeptFiles> kept_;
  const ObjectOutputOptions options_;
  UploadNote note_;
  std::vector<std::unique_ptr<KeptFile>> kept_writers_;
  UploadParts parts_;
};

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

Error busy(const std::string& destination) {
  return Error(ErrorCode::kExists, "cannot write: another run is writing there, or was killed")
      .in_file(note_url(destination))
      .because("a run leaves this object only if it was killed")
      .hint("to continue a killed run, resume it")
      .suggest(Remedy::kReplaceDestination);
}

Error exists(const std::string& url) {
  return Error(ErrorCode::kExists, "the destination already exists").in_file(url).suggest(Remedy::kReplaceDestination);
}

Error no_answer(const std::string& url, const std::string& why) {
  return Error(ErrorCode::kResource, "cannot write to the server").in_file(url).because(why);
}

class ObjectOutput final : public Output {
 public:
  ObjectOutput(const ObjectStore& store, std::string destination, const ObjectOutputOptions& options,
               std::shared_ptr<KeptFiles> kept)
      : store_(store), destination_(std::move(destination)), options_(options), kept_(std::move(kept)) {}
  ~ObjectOutput() override { abort(); }

  /// Takes the lock and begins an upload of each file.
  void begin(std::span<const OutputFile> files, bool is_folder, const ObjectLeft* left) {
    is_folder_ = is_folder;
    if (left != nullptr) {
      take_up(*left, files);
    } else {
      add_files(files);
      lock();
    }
    begin_uploads();
    if (!put_note(ObjectCondition::kSame)) throw busy(destination_);
  }

  std::vector<std::byte> token() const override {
    return OutputToken{note_.text(), is_folder_, is_continued_, completed_}.bytes();
  }

  void accept(std::span<const std::byte> receipt) override {
    for (auto& [url, parts] : parts_of_receipt(receipt)) parts_[url] = std::move(parts);
  }

  void prepare() override {
    for (const UploadNote::File& file : note_.files) check_parts(file);
    const ObjectAnswer there = store_.ask({.act = ObjectAct::kRead, .url = note_url(destination_)});
    if (there.outcome != ObjectOutcome::kDone || there.text != note_.text()) {
      throw Error(ErrorCode::kExists, "cannot write: another run has taken this output over")
          .in_file(note_url(destination_));
    }
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

  void leave() noexcept override { has_lock_ = false; }

  void abort() noexcept override {
    if (!has_lock_ || is_over_) return;
    has_lock_ = false;
    try {
      const auto end = std::chrono::steady_clock::now() + kAbortTime;
      for_each_object(note_.files.size(), options_.connections, [&](std::size_t i) {
        const UploadNote::File& file = note_.files[i];
        if (file.upload.empty() || std::chrono::steady_clock::now() > end) return;
        store_.ask({.act = ObjectAct::kAbort, .url = url_of(file), .upload = file.upload, .is_cleanup = true});
      });
      for (const auto& [path, etag] : completed_) {
        store_.ask({.act = ObjectAct::kRemove, .url = destination_ + path, .is_cleanup = true});
      }
      drop_strangers(true, true);
      if (std::chrono::steady_clock::now() > end) return;  // A later run finds them by the lock.
      store_.ask({.act = ObjectAct::kRemove, .url = note_url(destination_), .is_cleanup = true});
    } catch (...) {  // A later run finds the uploads by the lock.
    }
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
      note_.files.push_back({end_of_url(file, is_folder_), file.bytes, part});
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

  // ---- The lock.

  void lock() {
    note_.run = note_.holder = random_name();
    bool is_free = false;
    try {
      is_free = put_note(ObjectCondition::kAbsent);
    } catch (const Error&) {
      remove_own_note();  // It may have been stored.
      throw;
    }
    if (!is_free) {
      if (!options_.force) throw busy(destination_);
      note_etag_ = found_etag_;
      if (!put_note(ObjectCondition::kSame)) throw busy(destination_);
      say(fmt::format("removed the uploads of an interrupted run to {}", destination_));
    }
    has_lock_ = true;
    if (options_.force) {
      remove_uploads_of_others();
    } else {
      check_conditions();
      check_all_absent();
    }
  }

  void remove_own_note() const noexcept {
    try {
      const std::string url = note_url(destination_);
      const ObjectAnswer there = store_.ask({.act = ObjectAct::kRead, .url = url, .is_cleanup = true});
      if (there.text == note_.text()) store_.ask({.act = ObjectAct::kRemove, .url = url, .is_cleanup = true});
    } catch (const Error&) {  // A later run reports the lock.
    }
  }

  /// Stores the note. \returns false if a different one exists, whose ETag is then in found_etag_
  bool put_note(ObjectCondition condition) {
    const std::string text = note_.text();
    ObjectRequest request = note_request(condition, text);
    std::string why;
    for (request.attempt = 1; request.attempt <= kAttempts; ++request.attempt) {
      const ObjectAnswer answer = store_.ask(request);
      const ObjectAnswer there = answer.outcome == ObjectOutcome::kDone && !answer.etag.empty()
                                     ? ObjectAnswer{.text = text, .etag = answer.etag}
                                     : store_.ask({.act = ObjectAct::kRead, .url = request.url});
      if (there.outcome == ObjectOutcome::kDone && there.text == text) {  // Also if only the answer was lost.
        note_etag_ = there.etag;
        return true;
      }
      found_etag_ = there.etag;
      const bool is_there = there.outcome == ObjectOutcome::kDone;
      if (condition == ObjectCondition::kAbsent ? is_there : there.etag != note_etag_) return false;
      why = answer.text;
    }
    throw no_answer(request.url, why);
  }

  ObjectRequest note_request(ObjectCondition condition, const std::string& text) const {
    const auto body = std::as_bytes(std::span(text));
    return {.act = ObjectAct::kPut,
            .url = note_url(destination_),
            .run = note_.run,
            .etag = note_etag_,
            .condition = condition,
            .crc32c = crc32c(body),
            .body = body};
  }

  /// Stores that ignore conditions would replace silently. \throws Error kUnsupported
  void check_conditions() {
    const std::string text = note_.text();
    ObjectRequest request = note_request(ObjectCondition::kAbsent, text);
    for (request.attempt = 1; request.attempt <= kAttempts; ++request.attempt) {
      const ObjectAnswer answer = store_.ask(request);
      if (answer.outcome == ObjectOutcome::kRefused) return;
      if (answer.outcome != ObjectOutcome::kDone) continue;
      throw Error(ErrorCode::kUnsupported, "cannot write: the server does not support conditional writes")
          .in_file(destination_)
          .because("it replaced an object although If-None-Match forbade it, so another run could be overwritten");
    }
    throw no_answer(request.url, "a conditional write has no clear answer");
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
    keeps_.resize(note_.files.size());
    for_each_object(note_.files.size(), options_.connections, [this](std::size_t i) {
      UploadNote::File& file = note_.files[i];
      if (keeps_[i] || !file.upload.empty() || completed_.contains(file.path)) return;
      const ObjectAnswer answer = store_.ask({.act = ObjectAct::kBegin, .url = url_of(file), .run = note_.run});
      file.upload = answer.text;
      file.has_checksums = answer.has_checksums;
    });
  }

  void remove_uploads_of_others() {
    const auto uploads = store_.ask({.act = ObjectAct::kUploads, .url = destination_}).objects;
    for_each_object(uploads.size(), options_.connections, [&](std::size_t i) {
      store_.ask({.act = ObjectAct::kAbort, .url = uploads[i].url, .upload = uploads[i].upload});
    });
  }

  /// Continues the interrupted run under its name, so that its completed objects are this run's.
  void take_up(const ObjectLeft& left, std::span<const OutputFile> files) {
    note_ = left.note;
    note_etag_ = left.etag;
    check_same_files(files);
    note_.holder = random_name();
    if (!put_note(ObjectCondition::kSame)) throw busy(destination_);
    has_lock_ = true;
    is_continued_ = true;
    std::mutex mutex;
    for_each_object(note_.files.size(), options_.connections, [&](std::size_t i) {
      UploadNote::File& file = note_.files[i];
      if (file.upload.empty()) return;
      const ObjectAnswer there = store_.ask({.act = ObjectAct::kParts, .url = url_of(file), .upload = file.upload});
      if (there.outcome == ObjectOutcome::kDone && !there.parts.empty()) return;
      const ObjectAnswer object = store_.ask({.act = ObjectAct::kLook, .url = url_of(file)});
      if (object.outcome == ObjectOutcome::kDone && object.objects.front().run == note_.run) {
        const std::scoped_lock lock(mutex);
        completed_[file.path] = object.objects.front().etag;
      } else if (there.outcome == ObjectOutcome::kAbsent) {
        file.upload.clear();
      }
    });
    drop_strangers(false, false);
  }

  /// The job may have changed, but the files that were begun must be its files. Their content is compared later.
  void check_same_files(std::span<const OutputFile> files) {
    std::map<std::string, std::int64_t> now, before;
    for (const OutputFile& file : files) now[end_of_url(file, is_folder_)] = file.bytes;
    for (const UploadNote::File& file : note_.files) {
      before[file.path] = file.bytes;
      keeps_.push_back(file.upload.empty() && keeps_file(files, file));
    }
    if (now == before) return;
    throw Error(ErrorCode::kInvalidArgument, "cannot resume: the interrupted run was writing a different output")
        .in_file(destination_)
        .expected(fmt::format("{} files as in {}", before.size(), note_url(destination_)))
        .found(fmt::format("{} files, or other sizes", now.size()))
        .suggest(Remedy::kReplaceDestination);
  }

  /// The interrupted run may have been killed before its uploads were begun.
  bool keeps_file(std::span<const OutputFile> files, const UploadNote::File& noted) const {
    const auto file =
        std::ranges::find_if(files, [&](const OutputFile& each) { return end_of_url(each, is_folder_) == noted.path; });
    return noted.bytes == 0 || (file != files.end() && file->is_roots && noted.bytes <= kMostKept);
  }

  /// Removes uploads of this output's objects that the note does not name: their names were lost with an answer.
  void drop_strangers(bool is_quiet, bool is_cleanup) {
    std::set<std::string> known, urls;
    for (const UploadNote::File& file : note_.files) {
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
    for (std::size_t i = 0; i < note_.files.size(); ++i) {
      (is_folder_ && rank_of_name(note_.files[i].path) == 0 ? first : last).push_back(i);
    }
    // Without a marker, the last file in order completes the checkpoint. A single file comes before its companion.
    std::ranges::stable_sort(last, {}, [&](std::size_t i) {
      return is_folder_ ? rank_of_name(note_.files[i].path) : static_cast<int>(note_.files[i].path.size());
    });
    for_each_object(first.size(), options_.connections, [&](std::size_t i) { complete(first[i]); });
    for (const std::size_t i : last) complete(i);
  }

  void complete(std::size_t i) {
    const UploadNote::File& file = note_.files[i];
    if (completed_.contains(file.path)) return;
    ObjectRequest request{.url = url_of(file), .run = note_.run};
    request.condition = options_.force ? ObjectCondition::kAny : ObjectCondition::kAbsent;
    if (file.upload.empty()) {
      request.act = ObjectAct::kPut;
      const std::scoped_lock lock(kept_->mutex);
      request.body = kept_->content[file.path];
      request.crc32c = crc32c(request.body);
      if (std::ssize(request.body) != file.bytes) throw no_answer(request.url, "its bytes were not written");
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

  /// Sends a request until the object exists, written by this run or a different one.
  void settle(ObjectRequest& request) {
    std::string why;
    for (request.attempt = 1; request.attempt <= kAttempts; ++request.attempt) {
      const ObjectAnswer answer = store_.ask(request);
      if (answer.outcome == ObjectOutcome::kDone) return;
      const ObjectAnswer there = store_.ask({.act = ObjectAct::kLook, .url = request.url});
      const bool is_there = there.outcome == ObjectOutcome::kDone;
      const bool is_ours = is_there && there.objects.front().run == note_.run;
      if (is_ours && is_continued_ && request.act == ObjectAct::kPut && answer.outcome == ObjectOutcome::kRefused) {
        request.condition = ObjectCondition::kSame;  // The interrupted run's: replaced by the same, or by better bytes.
        request.etag = there.objects.front().etag;
        continue;
      }
      if (is_ours) return;  // It was done, only the answer was lost.
      if (is_there && request.condition != ObjectCondition::kAny) throw exists(request.url);
      why = answer.text.empty() ? "the upload is gone" : answer.text;
    }
    throw no_answer(request.url, why);
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

  /// After the commit. What fails here is found by a later run.
  void clean_up(const std::vector<std::string>& old) noexcept {
    try {
      std::set<std::string> made;
      for (const UploadNote::File& file : note_.files) made.insert(url_of(file));
      for (const std::string& url : old) {
        if (!made.contains(url)) store_.ask({.act = ObjectAct::kRemove, .url = url, .is_cleanup = true});
      }
      drop_strangers(true, true);
      store_.ask({.act = ObjectAct::kRemove, .url = note_url(destination_), .is_cleanup = true});
    } catch (const std::exception& error) {
      say(fmt::format("{} is complete, but something beside it could not be removed: {}", destination_, error.what()));
    }
  }

  /// Removes this run's objects after a failed commit, because they are useless without a marker.
  void take_back_some() noexcept {
    for (const std::string& url : done_) {
      try {
        const ObjectAnswer there = store_.ask({.act = ObjectAct::kLook, .url = url, .is_cleanup = true});
        if (there.outcome != ObjectOutcome::kDone || there.objects.front().run != note_.run) continue;
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
  UploadNote note_;
  std::string note_etag_, found_etag_;
  std::vector<std::uint8_t> keeps_;               ///< By file of the note: whether it waits in memory.
  std::map<std::string, std::string> completed_;  ///< By the interrupted run: ETags by the ends of URLs.
  PartsByUrl parts_;                              ///< From the ranks' receipts.
  std::mutex done_mutex_;
  std::vector<std::string> done_;  ///< Objects that this run has begun to complete.
  bool has_lock_ = false, is_continued_ = false, is_prepared_ = false, is_over_ = false;
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
    if (!note) throw busy(destination_).because("it is not the record of an output that can be continued");
    return std::make_unique<ObjectLeft>(*std::move(note), there.etag);
  }

  std::unique_ptr<Output> begin_removal() override { return nullptr; }

  std::unique_ptr<OutputPart> part(std::span<const std::byte> token) override {
    return std::make_unique<ObjectPart>(store_, destination_, OutputToken::of_bytes(token), kept_, options_);
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
  const std::string url = checked_destination(destination);
  std::vector<LeftUpload> left;
  for (const BucketObject& each : store.ask({.act = ObjectAct::kUploads, .url = url}).objects) {
    LeftUpload& upload = left.emplace_back(LeftUpload{each.url, each.upload});
    const ObjectAnswer parts = store.ask({.act = ObjectAct::kParts, .url = each.url, .upload = each.upload});
    upload.parts = std::ssize(parts.parts);
    for (const StoredPart& part : parts.parts) upload.bytes += part.bytes;
  }
  return left;
}

bool has_upload_lock(const ObjectStore& store, const std::string& destination) {
  const std::string url = note_url(checked_destination(destination));
  return store.ask({.act = ObjectAct::kLook, .url = url}).outcome != ObjectOutcome::kAbsent;
}

void remove_uploads(const ObjectStore& store, const std::string& destination, const std::vector<LeftUpload>& uploads) {
  for (const LeftUpload& each : uploads) {
    store.ask({.act = ObjectAct::kAbort, .url = each.url, .upload = each.name});
  }
  store.ask({.act = ObjectAct::kRemove, .url = note_url(checked_destination(destination))});
}

}  // namespace shard
