#include "formats/hdf5/parser/parse.h"

#include <seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <limits>
#include <new>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "formats/hdf5/library/handle.h"
#include "formats/hdf5/parser/channel.h"
#include "formats/hdf5/parser/describe.h"
#include "formats/hdf5/reply.h"

namespace shard::hdf5 {

namespace {

// The sandbox: drops every right that a parser does not need.

struct SandboxLimits {
  std::int64_t cpu_seconds = 0;
  std::int64_t memory_bytes = 0;  ///< The limit of address space.
};

/// Closes the descriptors that the parent had open.
void close_all_but_socket() {
  if (syscall(__NR_close_range, 1U, ~0U, 0U) == 0) return;
  constexpr rlim_t kMost = 1 << 20;  // The largest number of descriptors that kernels before 5.9 permit by default.
  rlimit descriptors{};
  getrlimit(RLIMIT_NOFILE, &descriptors);
  for (rlim_t each = 1; each < std::min(descriptors.rlim_cur, kMost); ++each) close(static_cast<int>(each));
}

/// Lowers a limit, whose signal is sent at `most`. A lower limit stays, because a process may not raise it.
bool limit(__rlimit_resource resource, std::int64_t most, std::int64_t grace = 0) {
  rlimit now{};
  if (getrlimit(resource, &now) != 0) return false;
  const rlim_t hard = std::min(static_cast<rlim_t>(most + grace), now.rlim_max);
  const rlimit lower{std::min({static_cast<rlim_t>(most), now.rlim_cur, hard}), hard};
  return setrlimit(resource, &lower) == 0;
}

bool set_limits(const SandboxLimits& limits) {
  constexpr int kDescriptors = 1;  // Only the socket, so that nothing can be opened.
  constexpr int kGrace = 1;        // The seconds after which SIGKILL follows SIGXCPU.
  return limit(RLIMIT_AS, limits.memory_bytes) && limit(RLIMIT_CPU, limits.cpu_seconds, kGrace) &&
         limit(RLIMIT_FSIZE, 0) && limit(RLIMIT_CORE, 0) && limit(RLIMIT_NOFILE, kDescriptors);
}

/// Permits the necessary calls. All others fail with EPERM.
bool add_rules(scmp_filter_ctx filter) {
  const scmp_arg_cmp of_socket = SCMP_A0(SCMP_CMP_EQ, 0);
  const scmp_arg_cmp of_memory = SCMP_A3(SCMP_CMP_MASKED_EQ, MAP_ANONYMOUS, MAP_ANONYMOUS);
  const scmp_arg_cmp not_code = SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, 0);
  bool is_added = true;
  for (const int call : {SCMP_SYS(read), SCMP_SYS(write)}) {
    is_added &= seccomp_rule_add(filter, SCMP_ACT_ALLOW, call, 1, of_socket) == 0;
  }
  is_added &= seccomp_rule_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(mmap), 2, of_memory, not_code) == 0;
  for (const int call : {SCMP_SYS(munmap), SCMP_SYS(mremap), SCMP_SYS(madvise), SCMP_SYS(brk), SCMP_SYS(exit),
                         SCMP_SYS(exit_group), SCMP_SYS(futex), SCMP_SYS(rt_sigreturn), SCMP_SYS(restart_syscall),
                         SCMP_SYS(clock_gettime), SCMP_SYS(gettimeofday),
                         SCMP_SYS(gettid)}) {  // LLVM's C++ library calls it when a static object is initialised.
    is_added &= seccomp_rule_add(filter, SCMP_ACT_ALLOW, call, 0) == 0;
  }
  return is_added;
}

bool filter_calls() {
  scmp_filter_ctx filter = seccomp_init(SCMP_ACT_ERRNO(1));
  if (filter == nullptr) return false;
  const bool is_loaded = add_rules(filter) && seccomp_load(filter) == 0;
  seccomp_release(filter);
  return is_loaded;
}

/// Closes all descriptors but 0. Afterwards this process can only read and write that one, allocate memory and end. It
/// ends with its parent.
/// \returns false if a limit or the filter of system calls (seccomp) cannot be set; then no file may be parsed.
bool enter_sandbox(const SandboxLimits& limits) {
  close_all_but_socket();
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  prctl(PR_SET_DUMPABLE, 0);
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || !set_limits(limits)) return false;
  return filter_calls();
}

// libhdf5's virtual file driver that reads through a Channel.

/// Absolute, so that libhdf5 does not request the working directory.
constexpr const char* kName = "/the file";
constexpr haddr_t kMostAddress = std::numeric_limits<std::int64_t>::max();
Channel* the_channel = nullptr;  ///< Global, because a driver's open() has no argument for it.

struct OpenFile {
  H5FD_t base;  ///< libhdf5's part, which must be the first member.
  haddr_t end_of_addresses;
};

H5FD_t* open_driver(const char* name, unsigned flags, hid_t, haddr_t) {
  if (std::string_view(name) != kName || (flags & (H5F_ACC_RDWR | H5F_ACC_CREAT)) != 0) return nullptr;
  return &(new OpenFile{})->base;
}

herr_t close_driver(H5FD_t* file) {
  delete reinterpret_cast<OpenFile*>(file);
  return 0;
}

herr_t query(const H5FD_t*, unsigned long* flags) {
  *flags = 0;
  return 0;
}

haddr_t end_of_addresses(const H5FD_t* file, H5FD_mem_t) {
  return reinterpret_cast<const OpenFile*>(file)->end_of_addresses;
}

herr_t set_end_of_addresses(H5FD_t* file, H5FD_mem_t, haddr_t address) {
  reinterpret_cast<OpenFile*>(file)->end_of_addresses = address;
  return 0;
}

haddr_t end_of_file(const H5FD_t*, H5FD_mem_t) { return static_cast<haddr_t>(the_channel->file_bytes()); }

herr_t read_bytes(H5FD_t*, H5FD_mem_t, hid_t, haddr_t address, size_t bytes, void* out) {
  if (address > kMostAddress || bytes > kMostAddress - address) return -1;
  the_channel->read(address, {static_cast<std::byte*>(out), bytes});
  return 0;
}

herr_t refuse_write(H5FD_t*, H5FD_mem_t, hid_t, haddr_t, size_t, const void*) { return -1; }

H5FD_class_t driver() {
  H5FD_class_t driver{};
  driver.name = "shardctl";
  driver.maxaddr = kMostAddress;
  driver.fc_degree = H5F_CLOSE_WEAK;
  driver.open = open_driver;
  driver.close = close_driver;
  driver.query = query;
  driver.get_eoa = end_of_addresses;
  driver.set_eoa = set_end_of_addresses;
  driver.get_eof = end_of_file;
  driver.read = read_bytes;
  driver.write = refuse_write;
  const H5FD_mem_t all_alike[] = H5FD_FLMAP_SINGLE;
  std::memcpy(driver.fl_map, all_alike, sizeof all_alike);
  return driver;
}

/// Opens the only file. Any other name fails, such as those in links and virtual datasets.
/// \pre `channel` outlives everything that is opened
FileHandle open_file(Channel& channel) {
  the_channel = &channel;
  static const H5FD_class_t the_driver = driver();
  const hid_t id = checked(H5FDregister(&the_driver));
  const PropertiesHandle access(H5Pcreate(H5P_FILE_ACCESS));
  checked(H5Pset_driver(access.get(), id, nullptr));
  checked(H5Pset_cache(access.get(), 0, 0, 0, 0));  // No cache of chunks, because their contents are not read here.
  return FileHandle(H5Fopen(kName, H5F_ACC_RDONLY, access.get()));
}

// The parser's last answer if its processor time ends while libhdf5 opens an object.
//
// libhdf5 decodes the mappings of a virtual dataset when it opens it, in time quadratic in the blocks of a selection.
// Nothing can be counted before that, so only the time limit stops it.

constexpr std::size_t kMostPath = 300;
constexpr std::string_view kWhy =
    "': opening it takes more processor time than a file of this size may use: the selections of a virtual dataset may "
    "have too many blocks";

/// A complete kFailure, prepared before the signal, because a handler may do little more than write it.
std::array<char, sizeof(FrameHead) + 2 + kMostPath + kWhy.size()> frame;
volatile std::sig_atomic_t frame_bytes = 0;  ///< 0 if no object is being opened.

void end_by_signal(int) {
  const auto bytes = static_cast<std::size_t>(frame_bytes);
  if (bytes > 0 && !Channel::is_busy() && write(0, frame.data(), bytes) == static_cast<ssize_t>(bytes)) _exit(0);
  std::signal(SIGXCPU, SIG_DFL);
  _exit(kExitOutOfTime);
}

/// Exists while libhdf5 opens the object at `path`. Only one at a time; nothing may be sent meanwhile.
class Opening {
 public:
  explicit Opening(std::string_view path) {
    path = path.substr(0, kMostPath);
    const FrameHead head{FrameKind::kFailure, static_cast<std::uint32_t>(2 + path.size() + kWhy.size())};
    std::memcpy(frame.data(), &head, sizeof head);
    char* at = frame.data() + sizeof head;
    *at++ = '\1';  // The flag of a file that is valid but unsupported.
    *at++ = '\'';
    at = std::copy(path.begin(), path.end(), at);
    at = std::copy(kWhy.begin(), kWhy.end(), at);
    frame_bytes = static_cast<std::sig_atomic_t>(at - frame.data());
  }
  ~Opening() { frame_bytes = 0; }
  Opening(const Opening&) = delete;
  Opening& operator=(const Opening&) = delete;
};

// All groups and datasets of a file, in the order that Entry guarantees.

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

/// True if the target of a soft link exists. libhdf5 only answers if all parts of a path but the last exist.
bool exists(hid_t group, const std::string& path) {
  for (std::size_t end = path.find('/', 1); true; end = path.find('/', end + 1)) {
    const std::string begin = path.substr(0, end);
    if (checked(H5Lexists(group, begin.c_str(), H5P_DEFAULT)) == 0) return false;
    if (checked(H5Oexists_by_name(group, begin.c_str(), H5P_DEFAULT)) == 0) return false;
    if (end == path.npos) return true;
  }
}

/// Calls `describe`. \returns the unsupported part that it finds; empty if there is none
template <class Describe>
std::string unsupported_by(Describe&& describe) {
  try {
    describe();
    return {};
  } catch (const LibraryError& error) {
    if (!error.is_unsupported()) throw;
    return error.what();
  }
}

/// Sends every entry, and the skipped objects. \throws LibraryError  its text names the object, unless it is the root
class Walk {
 public:
  Walk(const WholeFile& file, std::int64_t most_entry_bytes) : file_(file), arena_(most_entry_bytes) {}

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
  /// Afterwards `path_` is the path of the last level again.
  void visit_named(hid_t group, const Link& link) {
    try {
      visit(group, link);
    } catch (const LibraryError& error) {
      throw LibraryError("'" + shown_path() + "': " + error.what(), error.is_unsupported());
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
    if (!entered_.insert(address).second) throw_malformed("it is inside itself: links form a loop");
    if (levels_.size() == kMostDepth) throw_unsupported("groups are nested more than 1024 deep");
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
    const std::string why = unsupported_by([&] { describe_dataset(file_, dataset, entry, arena_); });
    if (!why.empty()) {
      arena_.clear();
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
    entry.attributes = read_attributes(object, arena_);
    send(entry);
    arena_.clear();
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
  EntryArena arena_;
  std::vector<Level> levels_;
  std::vector<std::string> path_;  ///< The path of the current object.
  std::set<haddr_t> entered_;
};

FileFacts facts_of(hid_t file) {
  H5F_info2_t info{};
  checked(H5Fget_info2(file, &info));
  const PropertiesHandle creation(H5Fget_create_plist(file));
  hsize_t user_block = 0;
  checked(H5Pget_userblock(creation.get(), &user_block));
  return {info.super.version, signed_of(user_block), {}};
}

void send_facts(Channel& channel, const FileFacts& facts) {
  const FactsPayload payload{facts.user_block_bytes, facts.superblock_version};
  channel.send(FrameKind::kDone, {reinterpret_cast<const char*>(&payload), sizeof payload});
}

void parse(Channel& channel, std::int64_t most_entry_bytes) {
  try {
    register_lzf_filter();
    const FileHandle file = open_file(channel);
    const WholeFile whole{channel, facts_of(file.get())};
    Walk(whole, most_entry_bytes).from(file.get());
    send_facts(channel, whole.facts);
  } catch (const LibraryError& error) {
    channel.send(FrameKind::kFailure, encode_failure(error.what(), error.is_unsupported()));
  } catch (const std::bad_alloc&) {
    channel.send(FrameKind::kFailure, encode_failure("it needs more memory than a file of its size may", false));
  }
}

}  // namespace

int run_parse(std::span<char*> arguments) try {
  if (arguments.size() != 4) return 2;
  const std::int64_t file_bytes = std::atoll(arguments[1]);
  const SandboxLimits limits{std::atoll(arguments[2]), std::atoll(arguments[3])};
  const auto lock = library_lock();
  Channel channel(file_bytes);
  std::signal(SIGXCPU, end_by_signal);  // During an Opening it sends a kFailure for an unsupported file.
  if (!enter_sandbox(limits)) return kExitWithoutSandbox;
  parse(channel, limits.memory_bytes / 4);
  // The answer is complete. Skipping libhdf5's clean-up avoids its faults.
  _exit(0);
} catch (const std::bad_alloc&) {
  _exit(kExitOutOfMemory);
}

}  // namespace shard::hdf5
