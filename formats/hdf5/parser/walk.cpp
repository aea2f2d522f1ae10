#include "formats/hdf5/parser/walk.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string>

#include "formats/hdf5/parser/contents.h"
#include "formats/hdf5/parser/opening.h"

namespace shard::hdf5 {

namespace {

/// Each level holds an open group.
constexpr std::size_t kMostDepth = 1024;

struct Link {
  std::string name;
  H5L_type_t kind;
};

struct Level {
  ObjectHandle group;
  haddr_t address;
  std::vector<Link> links;
  std::size_t next = 0;
};

herr_t take_link(hid_t, const char* name, const H5L_info_t* info, void* links) noexcept {
  static_cast<std::vector<Link>*>(links)->push_back({name, info->type});
  return 0;
}

std::vector<Link> links_of(hid_t group) {
  std::vector<Link> links;
  hsize_t next = 0;
  checked(H5Literate(group, H5_INDEX_NAME, H5_ITER_NATIVE, &next, take_link, &links));
  std::ranges::sort(links, {}, &Link::name);
  return links;
}

std::string target_of(hid_t group, const Link& link) {
  H5L_info_t info{};
  checked(H5Lget_info(group, link.name.c_str(), &info, H5P_DEFAULT));
  std::string target(info.u.val_size + 1, '\0');
  checked(H5Lget_val(group, link.name.c_str(), target.data(), target.size(), H5P_DEFAULT));
  target.resize(target.find('\0'));
  return target;
}

/// Whether a soft link leads anywhere. libhdf5 answers only where all but the last part of a path exists.
bool exists(hid_t group, const std::string& path) {
  for (std::size_t end = path.find('/', 1); true; end = path.find('/', end + 1)) {
    const std::string begin = path.substr(0, end);
    if (checked(H5Lexists(group, begin.c_str(), H5P_DEFAULT)) == 0) return false;
    if (checked(H5Oexists_by_name(group, begin.c_str(), H5P_DEFAULT)) == 0) return false;
    if (end == path.npos) return true;
  }
}

/// Calls `describe`. \returns what it finds not supported; empty: nothing
template <class Describe>
std::string unsupported_by(Describe&& describe) {
  try {
    describe();
    return {};
  } catch (const LibraryError& error) {
    if (!error.is_unsupported()) throw;
    return error.what();
  } catch (const Refusal& error) {
    if (!error.is_unsupported()) throw;
    return error.what();
  }
}

class Walk {
 public:
  Walk(const WholeFile& file, std::int64_t most_entry_bytes) : file_(file), kept_(most_entry_bytes) {}

  void from(hid_t root) {
    enter(ObjectHandle(H5Oopen(root, ".", H5P_DEFAULT)));
    while (!levels_.empty()) {
      Level& level = levels_.back();
      if (level.next == level.links.size()) {
        leave();
      } else {
        path_.push_back(level.links[level.next].name);
        visit_named(level.group.get(), level.links[level.next++]);
      }
    }
  }

 private:
  /// Afterwards `path_` is that of the last level.
  void visit_named(hid_t group, const Link& link) {
    try {
      visit(group, link);
    } catch (const LibraryError& error) {
      throw Refusal("'" + shown_path() + "': " + error.what(), error.is_unsupported());
    } catch (const Refusal& error) {
      throw Refusal("'" + shown_path() + "': " + error.what(), error.is_unsupported());
    }
    if (path_.size() == levels_.size()) path_.pop_back();
  }

  void visit(hid_t group, const Link& link) {
    switch (link.kind) {
      case H5L_TYPE_HARD:
        return open(group, link);
      case H5L_TYPE_SOFT:
        return follow(group, link);
      case H5L_TYPE_EXTERNAL:
        return send_unread("a link into another file (an external link) is not supported");
      default:
        return send_unread("a user-defined link is not supported");
    }
  }

  void follow(hid_t group, const Link& link) {
    const std::string target = target_of(group, link);
    if (!exists(group, target)) return skip("is a soft link to '" + target + "', which does not exist");
    open(group, link);
  }

  void open(hid_t group, const Link& link) {
    std::optional<ObjectHandle> object;
    const std::string why = unsupported_by([&] {
      const Opening opening(shown_path());
      object.emplace(H5Oopen(group, link.name.c_str(), H5P_DEFAULT));
    });
    object ? take(*std::move(object)) : send_unread(why);
  }

  void take(ObjectHandle object) {
    switch (checked(H5Iget_type(object.get()))) {
      case H5I_GROUP:
        return enter(std::move(object));
      case H5I_DATASET:
        return send_dataset(object.get());
      case H5I_DATATYPE:
        return skip("is a named datatype");
      default:
        throw_unsupported("an object of an unknown kind");
    }
  }

  void enter(ObjectHandle group) {
    const haddr_t address = address_of(group.get());
    if (!entered_.insert(address).second) throw_malformed("it lies inside itself: links form a loop");
    if (levels_.size() == kMostDepth) throw_unsupported("groups lie more than 1024 deep");
    std::vector<Link> links = links_of(group.get());
    Entry entry;
    entry.members = static_cast<std::int64_t>(links.size());
    entry.object = address;
    send(entry, group.get());
    levels_.push_back({std::move(group), address, std::move(links)});
  }

  void leave() {
    entered_.erase(levels_.back().address);
    levels_.pop_back();
    if (!path_.empty()) path_.pop_back();
  }

  void send_dataset(hid_t dataset) {
    Entry entry;
    entry.kind = EntryKind::kDataset;
    const std::string why = unsupported_by([&] { describe_dataset(file_, dataset, entry, kept_); });
    if (!why.empty()) {
      kept_.clear();
      entry = unread(why);
    }
    entry.object = address_of(dataset);
    send(entry, dataset);
  }

  static Entry unread(std::string_view why) {
    Entry entry;
    entry.kind = EntryKind::kUnread;
    entry.why = why;
    return entry;
  }

  void send_unread(std::string_view why) {
    Entry entry = unread(why);
    send(entry);
  }

  void send(Entry& entry, hid_t object) {
    entry.attributes = read_attributes(object, kept_);
    send(entry);
    kept_.clear();
  }

  void send(Entry& entry) {
    entry.links.assign(path_.begin(), path_.end());
    file_.channel.send(FrameKind::kEntry, encode(entry));
  }

  void skip(const std::string& why) { file_.channel.send(FrameKind::kSkipped, "'" + shown_path() + "' " + why); }

  static haddr_t address_of(hid_t object) {
    H5O_info_t info{};
    checked(H5Oget_info2(object, &info, H5O_INFO_BASIC));
    return info.addr;
  }

  std::string shown_path() const {
    std::string path;
    for (const std::string& name : path_) path.append(path.empty() ? "" : "/").append(name);
    return path;
  }

  const WholeFile& file_;
  Kept kept_;
  std::vector<Level> levels_;
  std::vector<std::string> path_;  ///< Of what is visited.
  std::set<haddr_t> entered_;
};

}  // namespace

void walk(const WholeFile& file, hid_t root, std::int64_t most_entry_bytes) { Walk(file, most_entry_bytes).from(root); }

}  // namespace shard::hdf5
