#include "libshard/stores/remote/remote_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <set>
#include <span>
#include <utility>

#include "libshard/core/bytes.h"
#include "libshard/core/digest.h"
#include "libshard/core/suffixes.h"
#include "libshard/stores/remote/block_cache.h"
#include "libshard/stores/remote/json_answer.h"
#include "libshard/stores/remote/url.h"

namespace shard::stores {

namespace {

constexpr std::int64_t kMostIndexBytes = 64 << 20;
constexpr std::int64_t kWholeBytes = 1 << 20;  ///< Files of at most this size are read whole.
constexpr std::string_view kHeadedSuffix = ".safetensors", kIndexSuffix = ".safetensors.index.json";
constexpr int kHeadsAhead = 64;  ///< Headers of a folder's files that are read before they are asked for.

/// The files by which a folder of a web server is recognised, which has no list.
constexpr std::array<std::string_view, 5> kMarkers{".metadata", "model.safetensors.index.json",
                                                   "pytorch_model.bin.index.json", "model.safetensors",
                                                   "pytorch_model.bin"};

struct StoredFile {
  Place& place;
  Object object;
  FileIdentity identity;
  BlockCache::FilePtr content;
};
using StoredPtr = std::shared_ptr<const StoredFile>;

FileIdentity identity_of(const std::string& url, const Object& object) {
  Hasher hasher(HashAlgorithm::kXxh3_128);
  for (const std::string* part : {&url, &object.etag, &object.modified}) {
    hasher.update(fmt::format("{}:", part->size()));
    hasher.update(*part);
  }
  const std::string hex = hasher.finish_hex();
  return {std::stoull(hex.substr(0, 16), nullptr, 16), std::stoull(hex.substr(16), nullptr, 16)};
}

/// True for a name with a suffix such as ".safetensors", which is rarely a folder's.
/// True for names that are not tried as folders there. Others may be folders, such as Lightning's "last.ckpt".
bool is_never_folder(std::string_view key) {
  return key.ends_with(".json") || key.ends_with(kSafetensorsSuffix) || ends_in_any(key, kTorchSuffixes) ||
         ends_in_any(key, kHdf5Suffixes);
}

bool looks_like_file(std::string_view key) {
  const std::string_view name = key.substr(key.rfind('/') + 1);
  const std::size_t dot = name.rfind('.');
  if (dot == std::string_view::npos || dot + 1 == name.size()) return false;
  return std::ranges::all_of(name.substr(dot + 1), [](char c) { return (c >= 'a' && c <= 'z') || c == '5'; });
}

/// Moves the name of the model from the path of a URL of the hub to its authority. Returns the revision, which is the
/// part after '@', or three parts in "refs/pr/1" and "refs/convert/parquet".
std::string take_model(Url& url) {
  const std::string path = std::exchange(url.path, {});
  std::size_t end = path.find('/');
  const std::size_t at = path.substr(0, end).find('@');
  const std::string_view after = std::string_view(path).substr(at == std::string::npos ? path.size() : at + 1);
  if (after.starts_with("refs/pr/") || after.starts_with("refs/convert/"))
    end = path.find('/', path.find('/', end + 1) + 1);
  end = std::min(end, path.size());
  if (end < path.size()) url.path = path.substr(end + 1);
  url.authority += "/" + path.substr(0, std::min(at, end));
  return at < end ? path.substr(at + 1, end - at - 1) : std::string();
}

std::string folder_of(std::string_view key) { return std::string(key.substr(0, key.rfind('/') + 1)); }

/// The files of one place, as far as they are known. Threads: safe. One looks at a time.
class PlaceFiles {
 public:
  PlaceFiles(std::unique_ptr<Place> place, BlockCache& cache) : place_(std::move(place)), cache_(cache) {}

  struct Found {
    FileKind kind = FileKind::kAbsent;
    StoredPtr file{};
  };

  Found look(const std::string& key) {
    const std::scoped_lock lock(mutex_);
    return find(key);
  }

  std::vector<std::string> names_in(const std::string& folder) {
    const std::scoped_lock lock(mutex_);
    const Found found = find(folder);
    if (found.kind != FileKind::kFolder) {
      throw Error(ErrorCode::kNotFound, found.kind == FileKind::kFile ? "cannot list: it is a file, not a folder"
                                                                      : "cannot list: no such folder")
          .in_file(place_->url_of(folder))
          .of_kind(FindingKind::kMissingFile);
    }
    const std::string prefix = folder.empty() ? folder : folder + "/";
    if (place_->can_list() && !is_listed_whole(prefix) && !shallow_.contains(prefix)) take_listing(prefix, false);
    std::set<std::string> names;
    for (auto each = folders_.lower_bound(prefix); each != folders_.end() && each->starts_with(prefix); ++each) {
      if (each->find('/', prefix.size()) == std::string::npos) names.insert(each->substr(prefix.size()));
    }
    // After each name, continues behind everything below it.
    for (auto each = files_.lower_bound(prefix); each != files_.end() && each->first.starts_with(prefix);) {
      const std::string rest = each->first.substr(prefix.size());
      const std::size_t slash = rest.find('/');
      names.insert(rest.substr(0, slash));
      each = slash == std::string::npos ? std::next(each) : files_.lower_bound(prefix + rest.substr(0, slash) + "0");
    }
    if (const auto listed = web_folders_.find(folder); listed != web_folders_.end()) {
      names.insert(listed->second.begin(), listed->second.end());
    }
    return {names.begin(), names.end()};
  }

  /// Starts to read the heads of the files after `key` in its folder, or of all after an index, if readers need the
  /// header of each. That is true of safetensors, but not of the files of a DCP checkpoint.
  void read_heads_after(const std::string& key) {
    const bool is_index = key.ends_with(kIndexSuffix);
    if (!is_index && !key.ends_with(kHeadedSuffix)) return;
    const std::scoped_lock lock(mutex_);
    const std::string folder = folder_of(key);
    if (!is_listed_whole(folder) && !shallow_.contains(folder)) return;
    const std::string previous = std::exchange(last_opened_, key);
    if (!is_index && (previous.empty() || folder_of(previous) != folder)) return;
    auto each = files_.upper_bound(is_index ? folder : key);
    for (int i = 0; i < kHeadsAhead && each != files_.end() && folder_of(each->first) == folder; ++i, ++each) {
      if (each->first.ends_with(kHeadedSuffix)) cache_.start_head(each->second->content);
    }
  }

  Place& place() const { return *place_; }

 private:
  bool is_listed_whole(const std::string& prefix) const {
    for (std::size_t end = 0;; ++end) {
      if (whole_.contains(prefix.substr(0, end))) return true;
      end = prefix.find('/', end);
      if (end == std::string::npos) return false;
    }
  }

  bool has_files_below(const std::string& folder) const {
    const std::string prefix = folder + "/";
    const auto first = files_.lower_bound(prefix);
    return first != files_.end() && first->first.starts_with(prefix);
  }

  /// Whether a listing shows that a folder above `key` does not exist.
  bool has_no_folder(const std::string& key) const {
    for (std::size_t end = key.find('/'); end != std::string::npos; end = key.find('/', end + 1)) {
      const std::string above = key.substr(0, end), parent = folder_of(above);
      const bool is_known = shallow_.contains(parent) || is_listed_whole(parent);
      if (is_known && !folders_.contains(above) && !has_files_below(above)) return true;
    }
    return false;
  }

  Found find(const std::string& key) {
    if (!place_->can_list()) return probe(key);
    if (key.empty()) return {FileKind::kFolder};
    if (has_no_folder(key)) return {};
    const std::string parent = folder_of(key), below = key + "/";
    if (!is_listed_whole(parent) && !is_listed_whole(below) && !shallow_.contains(parent)) {
      const bool is_file = looks_like_file(key);
      bool is_listed = !is_file && take_listing(below, true);
      const bool needs_parent = is_file || (!has_files_below(key) && !is_listed_whole(parent));
      if (needs_parent) is_listed = take_listing(parent, false);
      if (!is_listed) return probe(key);
    }
    const auto file = files_.find(key);
    const bool is_folder = folders_.contains(key) || has_files_below(key);
    if (file != files_.end() && is_folder) {
      throw Error(ErrorCode::kCorruption, "cannot use the server's files: one is both a file and a folder")
          .in_file(place_->url_of(key));
    }
    if (file != files_.end()) return {FileKind::kFile, file->second};
    return {is_folder ? FileKind::kFolder : FileKind::kAbsent};
  }

  /// \returns false if the server refuses this list
  bool take_listing(std::string prefix, bool is_deep) {
    if (place_->lists_whole()) {
      prefix.clear();
      is_deep = true;
    }
    if (unlisted_.contains(prefix)) return false;
    Listing listing = place_->list(prefix, is_deep);
    if (listing.refused) {
      no_list_ = std::move(listing.refused);
      unlisted_.insert(std::move(prefix));
      return false;
    }
    const std::int64_t limit = whole_limit(listing.objects);
    for (Object& object : listing.objects) add(std::move(object), limit);
    folders_.insert(listing.folders.begin(), listing.folders.end());
    (is_deep ? whole_ : shallow_).insert(std::move(prefix));
    return true;
  }

  /// The size up to which a file is read whole, which takes one request. The small files of a folder must fit into
  /// memory together, because they are read in turns. Otherwise each would be read many times over.
  std::int64_t whole_limit(std::span<const Object> objects = {}) const {
    const std::int64_t limit = std::min(kWholeBytes, cache_.block_bytes());
    std::int64_t all = 0;
    for (const Object& each : objects) all += each.bytes <= limit ? each.bytes : 0;
    return all <= cache_.memory_bytes() / 2 ? limit : kHeadBytes;
  }

  /// A file that is known already remains as it was first described.
  StoredPtr add(Object object, std::int64_t limit) {
    if (const auto known = files_.find(object.key); known != files_.end()) return known->second;
    if (object.head_bytes == 0) object.head_bytes = object.bytes <= limit ? object.bytes : kHeadBytes;
    const auto file = std::make_shared<StoredFile>(StoredFile{*place_, {}, {}, {}});
    file->identity = identity_of(place_->url_of(object.key), object);
    file->object = std::move(object);
    file->content = std::make_shared<BlockCache::File>(
        BlockCache::File{file->object.bytes, file->object.head_bytes,
                         [whole = file.get()](std::int64_t offset, std::span<std::byte> out) {
                           whole->place.read(whole->object, offset, out);
                         }});
    return files_[file->object.key] = file;
  }

  // ---- Places without lists, or whose lists are refused.

  Found probe(const std::string& key) {
    if (const auto file = files_.find(key); file != files_.end()) return {FileKind::kFile, file->second};
    if (web_folders_.contains(key)) return {FileKind::kFolder};
    if (absent_.contains(key) || is_below_file(key)) return {};
    std::optional<Error> refused;
    if (StoredPtr file = probe_file(key, refused)) return {FileKind::kFile, file};
    const bool may_be_folder = !is_never_folder(key) && !is_in_web_folder(key);
    if (may_be_folder && find_markers(key, refused)) return {FileKind::kFolder};
    if (!refused) refused = no_list_;
    if (refused && is_expected(key)) throw *refused;
    absent_.insert(key);
    return {};
  }

  bool is_below_file(const std::string& key) const {
    for (std::size_t end = key.find('/'); end != std::string::npos; end = key.find('/', end + 1)) {
      if (files_.contains(key.substr(0, end))) return true;
    }
    return false;
  }

  /// Whether a refused file matters: an index names it, or its folder has no readable file either. Some servers refuse
  /// access to missing files.
  bool is_expected(const std::string& key) const {
    const std::string folder = folder_of(key);
    for (std::string above = folder;; above = folder_of(above)) {
      const std::string name = key.substr(above.size());
      if (!above.empty()) above.pop_back();
      const auto listed = web_folders_.find(above);
      if (listed != web_folders_.end()) return std::ranges::find(listed->second, name) != listed->second.end();
      if (above.empty()) break;
    }
    const auto first = files_.lower_bound(folder);
    return first == files_.end() || !first->first.starts_with(folder);
  }

  /// `refused` receives the error if the server refuses access.
  StoredPtr probe_file(const std::string& key, std::optional<Error>& refused) {
    if (key.empty()) return nullptr;
    std::optional<Place::Probed> probed = place_->probe(key, refused);
    if (!probed) return nullptr;
    StoredPtr file = add(std::move(probed->object), whole_limit());
    cache_.put_head(file->content, probed->head);
    return file;
  }

  bool is_in_web_folder(const std::string& key) const {
    return std::ranges::any_of(web_folders_, [&](const auto& folder) {
      return key.starts_with(folder.first.empty() ? folder.first : folder.first + "/");
    });
  }

  bool find_markers(const std::string& folder, std::optional<Error>& refused) {
    for (const std::string_view marker : kMarkers) {
      const std::string key = folder.empty() ? std::string(marker) : fmt::format("{}/{}", folder, marker);
      const StoredPtr file = probe_file(key, refused);
      if (file == nullptr) {
        absent_.insert(key);
        continue;
      }
      std::vector<std::string> names;
      if (marker.ends_with(".json") && file->object.bytes <= kMostIndexBytes) {
        std::vector<std::byte> text(static_cast<std::size_t>(file->object.bytes));
        const RangedRead all{0, text};
        cache_.read(file->content, std::span(&all, 1));
        names = files_in_index(as_text(text));
        std::erase_if(names, [](const std::string& name) { return name.find('/') != std::string::npos; });
      }
      names.emplace_back(marker);
      web_folders_[folder] = std::move(names);
      return true;
    }
    return false;
  }

  const std::unique_ptr<Place> place_;
  BlockCache& cache_;
  std::mutex mutex_;
  std::map<std::string, StoredPtr> files_;           ///< By key.
  std::set<std::string> folders_, whole_, shallow_;  ///< Folders of shallow listings; prefixes of both kinds.
  std::map<std::string, std::vector<std::string>> web_folders_;  ///< With the names in them.
  std::set<std::string> absent_;                                 ///< Keys, if the place has no lists.
  std::set<std::string> unlisted_;                               ///< Prefixes whose lists the server refuses.
  std::optional<Error> no_list_;                                 ///< Its last refusal of a list.
  std::string last_opened_;
};

class RemoteReader final : public RandomReader {
 public:
  RemoteReader(StoredPtr file, BlockCache& cache, int connections, const std::string& path)
      : file_(std::move(file)), cache_(cache), connections_(connections) {
    name_ = path;
  }

  void read_at(std::int64_t offset_bytes, std::span<std::byte> out) const override {
    const RangedRead range{offset_bytes, out};
    read_many(std::span(&range, 1));
  }
  void read_many(std::span<const RangedRead> ranges) const override {
    for (const RangedRead& range : ranges) {
      const std::int64_t end = range.offset_bytes + std::ssize(range.out);
      if (end > size()) throw file_too_short(name_, size(), end);
    }
    cache_.read(file_->content, ranges);
  }
  void expect_read(std::int64_t offset_bytes, std::int64_t bytes) const override {
    if (offset_bytes >= size()) return;
    cache_.expect_read(file_->content, offset_bytes, offset_bytes + std::min(bytes, size() - offset_bytes));
  }
  int streams_at_once() const override { return connections_; }
  void stream(std::int64_t offset_bytes, std::int64_t bytes, const ByteTaker& take) const override {
    if (bytes > size() - offset_bytes) throw file_too_short(name_, size(), offset_bytes + bytes);
    file_->place.stream(file_->object, offset_bytes, bytes, take);
    cache_.expect_no_reads(file_->content, offset_bytes, offset_bytes + bytes);
  }
  std::int64_t size() const override { return file_->object.bytes; }
  FileIdentity identity() const override { return file_->identity; }

 private:
  const StoredPtr file_;
  BlockCache& cache_;
  const int connections_;
};

class RemoteStore final : public UrlFiles {
 public:
  RemoteStore(const StoreRequest& request, const StoreListener& listener, Environment environment,
              const HttpLimits& limits)
      : request_(request),
        listener_(listener),
        environment_(std::move(environment)),
        transport_(limits, listener_),
        cache_(request.memory_bytes, request.connections, request.readers) {}
  RemoteStore(const RemoteStore&) = delete;
  RemoteStore& operator=(const RemoteStore&) = delete;
  ~RemoteStore() override { transport_.close(); }

  FileStatus status(const std::string& path) const override {
    const auto [files, key] = locate(path);
    const PlaceFiles::Found found = files.look(key);
    FileStatus status;
    status.kind = found.kind;
    if (found.file == nullptr) return status;
    status.bytes = found.file->object.bytes;
    status.device = found.file->identity.device;
    status.inode = found.file->identity.inode;
    return status;
  }

  std::vector<std::string> list(const std::string& folder) const override {
    const auto [files, key] = locate(folder);
    return files.names_in(key);
  }

  std::unique_ptr<RandomReader> open(const std::string& path) const override {
    const auto [files, key] = locate(path);
    const PlaceFiles::Found found = files.look(key);
    if (found.kind != FileKind::kFile) {
      throw Error(ErrorCode::kNotFound, found.kind == FileKind::kFolder ? "cannot open: it is a folder, not a file"
                                                                        : "cannot open: no such file")
          .in_file(path)
          .of_kind(FindingKind::kMissingFile);
    }
    files.read_heads_after(key);
    return std::make_unique<RemoteReader>(found.file, cache_, request_.connections, path);
  }

  ObjectAnswer ask(const ObjectRequest& request) const override {
    const auto [files, key] = locate(request.url);
    if (request.act != ObjectAct::kCopy || !request.etag.empty()) return change_objects(files.place(), key, request);
    if (!is_copied_by_store(request.from, request.url)) return {.outcome = ObjectOutcome::kCannot};
    const auto [source, source_key] = locate(request.from);
    const PlaceFiles::Found found = source.look(source_key);
    if (found.kind != FileKind::kFile) return {.outcome = ObjectOutcome::kRefused};
    ObjectRequest pinned = request;
    pinned.from = source.place().url_of(source_key);
    pinned.etag = found.file->object.etag;
    if (pinned.etag.empty() || pinned.etag.starts_with("W/")) return {.outcome = ObjectOutcome::kCannot};
    ObjectAnswer answer = change_objects(files.place(), key, pinned);
    if (answer.outcome == ObjectOutcome::kDone) {
      cache_.expect_no_reads(found.file->content, request.begin, request.end);
    }
    return answer;
  }

 private:
  struct Location {
    PlaceFiles& files;
    std::string key;
  };

  /// The place of a URL, which is opened the first time.
  Location locate(const std::string& path) const {
    Url url = parse_url(path);
    std::string revision;
    if (url.scheme == "hf") revision = take_model(url);
    const std::scoped_lock lock(mutex_);
    std::unique_ptr<PlaceFiles>& files = places_[fmt::format("{}://{}@{}", url.scheme, url.authority, revision)];
    if (files == nullptr) files = std::make_unique<PlaceFiles>(open_place(url, revision), cache_);
    return {*files, url.path};
  }

  std::unique_ptr<Place> open_place(const Url& url, const std::string& revision) const {
    if (url.scheme == "hf") return open_hub(transport_, request_, environment_, url.authority, revision);
    if (url.scheme == "s3" || url.scheme == "gs") {
      return open_bucket(transport_, request_, environment_, url.scheme, url.authority);
    }
    return open_web(transport_, url.scheme, url.authority);
  }

  const StoreRequest request_;
  const StoreListener listener_;
  const Environment environment_;
  mutable Transport transport_;
  mutable std::mutex mutex_;
  mutable std::map<std::string, std::unique_ptr<PlaceFiles>> places_;
  mutable BlockCache cache_;  ///< Ends its threads first, which use the places.
};

}  // namespace

std::unique_ptr<UrlFiles> remote_store(const StoreRequest& request, const StoreListener& listener,
                                       Environment environment, const HttpLimits& limits) {
  return std::make_unique<RemoteStore>(request, listener, std::move(environment), limits);
}

}  // namespace shard::stores
