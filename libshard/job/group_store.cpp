#include "libshard/job/group_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>

#include "libshard/core/digest.h"
#include "libshard/core/error.h"
#include "libshard/io/paths.h"
#include "libshard/io/url_path.h"
#include "libshard/ranks/group.h"

namespace shard {

namespace {

constexpr std::int64_t kKinds = static_cast<std::int64_t>(FileKind::kOther) + 1;

const char* kind_text(FileKind kind) {
  if (kind == FileKind::kFile) return "a file";
  return kind == FileKind::kFolder ? "a folder" : "neither a file nor a folder";
}

std::string seen_text(FileKind kind, std::int64_t bytes) {
  return kind == FileKind::kFile ? fmt::format("{} bytes", bytes) : kind_text(kind);
}

/// The distinct contributions of all ranks.
struct GatheredPieces {
  std::vector<Bytes> pieces;
  std::vector<std::vector<int>> ranks;  ///< By contribution: its ranks, rising. Sorted by their first.
};

/// A rank's description of its bytes, exchanged before they are sent.
struct Head {
  std::array<char, 32> hash{};
  std::int64_t bytes = 0;
};

Head head_of(const Bytes& piece) {
  Hasher hasher(HashAlgorithm::kXxh3_128);
  hasher.update(piece);
  Head head;
  std::ranges::copy(hasher.finish_hex(), head.hash.begin());
  head.bytes = std::ssize(piece);
  return head;
}

/// Groups ranks with equal bytes. The ranks of a group rise, and the groups are sorted by their first rank.
std::vector<std::vector<int>> ranks_alike(std::span<const Head> heads) {
  std::vector<std::vector<int>> groups;
  std::map<std::array<char, 32>, std::size_t> known;
  for (std::size_t rank = 0; rank < heads.size(); ++rank) {
    const auto [group, is_new] = known.try_emplace(heads[rank].hash, groups.size());
    if (is_new) groups.emplace_back();
    groups[group->second].push_back(static_cast<int>(rank));
  }
  return groups;
}

/// Sends the `own` bytes of each group's first rank to all others. \returns the bytes by group.
std::vector<Bytes> exchange_once(Group& group, const Bytes& own, std::span<const Head> heads,
                                 std::span<const std::vector<int>> alike) {
  std::vector<std::span<const std::byte>> to(heads.size());
  std::vector<std::span<std::byte>> from(heads.size());
  std::vector<Bytes> all;
  for (const std::vector<int>& ranks : alike) {
    const int first = ranks.front();
    Bytes& piece = all.emplace_back(static_cast<std::size_t>(heads[static_cast<std::size_t>(first)].bytes));
    if (first != group.rank()) {
      from[static_cast<std::size_t>(first)] = piece;
      continue;
    }
    piece = own;
    std::ranges::fill(to, std::span<const std::byte>(own));
    to[static_cast<std::size_t>(first)] = {};
  }
  group.exchange(to, from);
  return all;
}

/// Collects every rank's `own` bytes on all ranks. Equal bytes are sent once. \throws Error kPeer
/// Cost: an all_gather of 40 bytes, then the bytes that differ.
GatheredPieces all_gather_dedup(Group& group, const Bytes& own) {
  const Head head = head_of(own);
  const std::vector<Head> heads = all_gather_values(group, head);
  GatheredPieces all;
  all.ranks = ranks_alike(heads);
  all.pieces = exchange_once(group, own, heads, all.ranks);
  return all;
}

constexpr std::int64_t kBlock = 16 << 10, kSmallRead = 64 << 10, kLongestAsk = 1 << 20;
constexpr std::int64_t kMostReplies = GroupStore::kMemoryBytes / 3;  ///< Bytes from or to a rank in a round.
constexpr std::size_t kBlocksKept = GroupStore::kMemoryBytes / 3 / kBlock, kAsksAtOnce = 64, kFilesServed = 64;

}  // namespace

PathView view_of(const SourceStore& store, const std::string& path) {
  const FileStatus status = store.status(path);
  PathView view{status.kind, status.kind == FileKind::kFile ? status.bytes : 0, {}, false};
  if (status.kind != FileKind::kFolder) return view;
  for (const std::string& name : store.list(path)) {
    const FileStatus entry = store.status(join_path(path, name));
    view.entries.push_back({name, entry.kind, entry.kind == FileKind::kFile ? entry.bytes : 0});
  }
  return view;
}

namespace {

template <class Wire>
void pass(Wire& wire, Passed<Wire, PathView>& view) {
  wire.pass_below(view.kind, kKinds);
  wire.pass(view.bytes, view.is_unknown);
  wire.list(view.entries, [&](auto& entry) {
    wire.pass(entry.name, entry.bytes);
    wire.pass_below(entry.kind, kKinds);
  });
}

}  // namespace

void PeerPaths::add(const std::string& path, std::span<const PathView* const> views,
                    std::span<const std::vector<int>> ranks) {
  std::vector<std::pair<std::size_t, PathView::Entry>> seen;
  std::map<std::string, std::vector<std::pair<std::size_t, PathView::Entry>>> entries;
  for (std::size_t i = 0; i < views.size(); ++i) {
    if (views[i]->kind == FileKind::kAbsent) continue;
    seen.emplace_back(i, PathView::Entry{{}, views[i]->kind, views[i]->bytes});
    for (const PathView::Entry& entry : views[i]->entries) entries[entry.name].emplace_back(i, entry);
  }
  add_one(path, seen, ranks);
  PeerPath& folder = paths_.at(path);
  folder.is_listed = true;
  folder.names.clear();
  for (const auto& [name, of_views] : entries) {
    folder.names.push_back(name);
    add_one(join_path(path, name), of_views, ranks);
  }
}

void PeerPaths::add_one(const std::string& path, std::span<const std::pair<std::size_t, PathView::Entry>> seen,
                        std::span<const std::vector<int>> ranks) {
  const auto [entry, is_new] = paths_.try_emplace(path);
  PeerPath& all = entry->second;
  if (!is_new) return;  // The first view of a path remains valid for the whole job.
  all.number = static_cast<std::uint32_t>(paths_.size());
  std::vector<std::size_t> views;
  for (const auto& [view, one] : seen) {
    views.push_back(view);
    if (views.size() == 1) {
      all.kind = one.kind;
      all.bytes = one.bytes;
    } else if (all.other < 0 && (one.kind != all.kind || one.bytes != all.bytes)) {
      all.other = ranks[view].front();
      all.other_kind = one.kind;
      all.other_bytes = one.bytes;
    }
  }
  all.holders = holders_of(views, ranks);
}

std::uint32_t PeerPaths::holders_of(const std::vector<std::size_t>& views, std::span<const std::vector<int>> ranks) {
  std::vector<int> all;
  for (const std::size_t view : views) all.insert(all.end(), ranks[view].begin(), ranks[view].end());
  std::ranges::sort(all);
  if (all.empty()) return 0;
  const auto [known, is_new] = known_holders_.try_emplace(all, static_cast<std::uint32_t>(holders_.size()));
  if (is_new) holders_.push_back(std::move(all));
  return known->second;
}

const PeerPath* PeerPaths::find(const std::string& path) const {
  static const PeerPath nothing = [] {
    PeerPath absent;
    absent.is_listed = true;
    return absent;
  }();
  if (const auto found = paths_.find(path); found != paths_.end()) return &found->second;
  const auto above = paths_.find(parent_path(path));
  return above != paths_.end() && above->second.is_listed ? &nothing : nullptr;
}

const PeerPath* PeerPaths::find_file(const std::string& end_of_path) const {
  if (const auto exact = paths_.find(end_of_path); exact != paths_.end()) return &exact->second;
  const PeerPath* found = nullptr;
  for (const auto& [path, seen] : paths_) {
    if (seen.kind != FileKind::kFile || !path.ends_with("/" + end_of_path)) continue;
    if (found != nullptr) return nullptr;
    found = &seen;
  }
  return found;
}

Error different_files(int rank, int other, const std::string& path) {
  return Error(ErrorCode::kCorruption,
               fmt::format("ranks {} and {} have different files with the same name", rank, other))
      .in_file(path)
      .of_kind(FindingKind::kMixedSave);
}

void check_agreement(const PeerPath& seen, const std::vector<int>& holders, const std::string& path) {
  if (seen.other < 0) return;
  throw different_files(holders.front(), seen.other, path)
      .expected(fmt::format("{} on rank {}", seen_text(seen.kind, seen.bytes), holders.front()))
      .found(fmt::format("{} on rank {}", seen_text(seen.other_kind, seen.other_bytes), seen.other));
}

std::string GroupStore::FileName::path() const { return relative.empty() ? folder : join_path(folder, relative); }

class GroupStore::RemoteFile final : public RandomReader {
 public:
  RemoteFile(const GroupStore& store, FileName file, std::int64_t bytes)
      : store_(store), file_(std::move(file)), bytes_(bytes) {
    name_ = file_.path();
  }
  void read_at(std::int64_t offset_bytes, std::span<std::byte> out) const override {
    const std::int64_t end = offset_bytes + std::ssize(out);
    if (offset_bytes < 0 || end > bytes_) throw file_too_short(name_, bytes_, end);
    if (!out.empty()) store_.read(file_, bytes_, offset_bytes, out);
  }
  std::int64_t size() const override { return bytes_; }

 private:
  const GroupStore& store_;
  const FileName file_;
  const std::int64_t bytes_;
};

// ---- Called by the work's threads.

PeerPath GroupStore::seen(const std::string& path) const {
  for (;;) {
    {
      const std::scoped_lock lock(mutex_);
      if (const PeerPath* known = paths_.find(path)) return *known;
    }
    Ask ask{.file = {path, {}}};
    wait_for(ask);
  }
}

void GroupStore::wait_for(Ask& ask) const {
  std::unique_lock lock(mutex_);
  if (step_ != nullptr && !is_stopped_) {
    asks_.push_back(&ask);
    step_->wake();
    changed_.wait(lock, [&] { return ask.is_done || is_stopped_; });
    asks_.remove(&ask);
  }
  if (!ask.is_done) throw Error(ErrorCode::kInterrupted, "interrupted");
}

FileStatus GroupStore::status(const std::string& path) const {
  const PeerPath what = seen(path);
  FileStatus status;
  status.kind = what.kind;
  status.bytes = what.bytes;
  status.device = 1;
  status.inode = what.number;
  status.mode = 0644;
  return status;
}

std::vector<std::string> GroupStore::list(const std::string& folder) const {
  PeerPath what = seen(folder);
  if (!what.is_listed) {
    Ask ask{.file = {folder, {}}};
    wait_for(ask);
    what = seen(folder);
  }
  if (what.kind != FileKind::kFolder) return own_.list(folder);  // The store then throws the right error.
  const std::scoped_lock lock(mutex_);
  check_agreement(what, paths_.holders(what), folder);
  return what.names;
}

std::unique_ptr<RandomReader> GroupStore::open(const std::string& path) const { return open(FileName{path, {}}); }

std::unique_ptr<RandomReader> GroupStore::open_below(const std::string& folder, const std::string& relative) const {
  static_cast<void>(parts_below(folder, relative));
  return open(FileName{folder, relative});
}

std::unique_ptr<RandomReader> GroupStore::open(const FileName& file) const {
  const std::string path = file.path();
  const PeerPath what = seen(path);
  bool is_own = what.kind != FileKind::kFile;  // Opening then throws the right error.
  if (!is_own) {
    const std::scoped_lock lock(mutex_);
    const std::vector<int>& ranks = paths_.holders(what);
    check_agreement(what, ranks, path);
    is_own = std::ranges::binary_search(ranks, rank_);
  }
  if (!is_own) return std::make_unique<RemoteFile>(*this, file, what.bytes);
  return file.relative.empty() ? own_.open(path) : own_.open_below(file.folder, file.relative);
}

std::vector<int> GroupStore::holders(const std::string& name) const {
  const std::scoped_lock lock(mutex_);
  const PeerPath* known = paths_.find(name);
  return known == nullptr ? std::vector<int>() : paths_.holders(*known);
}

void GroupStore::read(const FileName& file, std::int64_t file_bytes, std::int64_t offset_bytes,
                      std::span<std::byte> out) const {
  if (std::ssize(out) <= kSmallRead) return read_blocks(file, file_bytes, offset_bytes, out);
  while (!out.empty()) {
    const std::size_t count = std::min(out.size(), static_cast<std::size_t>(kLongestAsk));
    Ask ask{.file = file, .offset_bytes = offset_bytes, .out = out.first(count)};
    wait_for(ask);
    out = out.subspan(count);
    offset_bytes += static_cast<std::int64_t>(count);
  }
}

void GroupStore::read_blocks(const FileName& file, std::int64_t file_bytes, std::int64_t offset_bytes,
                             std::span<std::byte> out) const {
  const std::string path = file.path();
  const std::int64_t first = offset_bytes / kBlock, end = (offset_bytes + std::ssize(out) - 1) / kBlock + 1;
  const auto skipped = static_cast<std::size_t>(offset_bytes - first * kBlock);
  Bytes bytes;
  {
    const std::scoped_lock lock(mutex_);
    for (std::int64_t block = first; block < end; ++block) {
      const auto known = blocks_.find({path, block});
      if (known == blocks_.end()) break;
      bytes.insert(bytes.end(), known->second.begin(), known->second.end());
    }
  }
  if (bytes.size() < skipped + out.size()) {
    bytes.resize(static_cast<std::size_t>(std::min(end * kBlock, file_bytes) - first * kBlock));
    Ask ask{.file = file, .offset_bytes = first * kBlock, .out = bytes};
    wait_for(ask);
    const std::scoped_lock lock(mutex_);
    for (std::int64_t block = first; block < end; ++block) {
      const auto begin = static_cast<std::size_t>((block - first) * kBlock);
      const std::span part = std::span(bytes).subspan(begin, std::min(bytes.size() - begin, std::size_t{kBlock}));
      if (!blocks_.try_emplace({path, block}, part.begin(), part.end()).second) continue;
      block_order_.emplace_back(path, block);
      if (block_order_.size() <= kBlocksKept) continue;
      blocks_.erase(block_order_.front());
      block_order_.pop_front();
    }
  }
  std::copy_n(std::span(bytes).data() + skipped, out.size(), out.data());
}

// ---- Called by the group's thread.

void GroupStore::end() {
  AwaitedTraffic::end();
  const std::scoped_lock lock(mutex_);
  blocks_.clear();
  block_order_.clear();
}

std::int64_t GroupStore::word() {
  const std::scoped_lock lock(mutex_);
  batch_.clear();
  if (asks_.empty() || is_stopped_) return 0;
  WireWriter writer;
  std::size_t count = 0;
  for (const Ask* ask : asks_) {
    if (++count > kAsksAtOnce) break;
    writer.text(ask->file.folder);
    writer.text(ask->file.relative);
    writer.number(ask->offset_bytes);
    writer.number(std::ssize(ask->out));
  }
  batch_ = writer.take();
  return std::ssize(batch_);
}

bool GroupStore::waits() const {
  const std::scoped_lock lock(mutex_);
  return !asks_.empty();
}

bool GroupStore::move(Group& group, std::span<const std::int64_t> words) {
  if (std::ranges::all_of(words, [](std::int64_t word) { return word == 0; })) return false;
  ++meeting_;
  const std::vector<Wish> wishes = exchange_wishes(group, words);
  std::vector<std::string> looks;
  std::vector<Wish> reads;
  for (const Wish& wish : wishes) {
    if (wish.bytes != 0) {
      reads.push_back(wish);
    } else if (const std::string path = wish.file.path(); std::ranges::find(looks, path) == looks.end()) {
      looks.push_back(path);
    }
  }
  if (!looks.empty()) look(group, looks);
  if (!reads.empty()) reply(group, reads);
  return true;
}

std::vector<GroupStore::Wish> GroupStore::exchange_wishes(Group& group, std::span<const std::int64_t> words) {
  const auto own = static_cast<std::size_t>(rank_);
  std::vector<std::span<const std::byte>> to(words.size(), batch_);
  to[own] = {};
  std::vector<Bytes> batches(words.size());
  std::vector<std::span<std::byte>> from(words.size());
  for (std::size_t rank = 0; rank < words.size(); ++rank) {
    if (rank == own) continue;
    batches[rank].resize(static_cast<std::size_t>(words[rank]));
    from[rank] = batches[rank];
  }
  group.exchange(to, from);
  batches[own] = batch_;
  std::vector<Wish> wishes;
  for (std::size_t rank = 0; rank < words.size(); ++rank) {
    for (WireReader reader(batches[rank]); !reader.at_end();) {
      Wish& wish = wishes.emplace_back();
      wish.file.folder = reader.text();
      wish.file.relative = reader.text();
      wish.offset_bytes = reader.number();
      wish.bytes = reader.number_below(kLongestAsk + 1);
      wish.asker = static_cast<int>(rank);
    }
  }
  return wishes;
}

/// This rank's views of the paths. A path that it cannot access fails the step.
Bytes GroupStore::own_views(const std::vector<std::string>& paths) {
  WireWriter writer;
  for (const std::string& path : paths) {
    PathView view;
    try {
      view = view_of(own_, path);
    } catch (const Error&) {
      view.is_unknown = true;
      step_->fail(std::current_exception());
    }
    pass(writer, view);
  }
  return writer.take();
}

void GroupStore::look(Group& group, const std::vector<std::string>& paths) {
  const Bytes own = own_views(paths);
  const auto [answers, alike] = all_gather_dedup(group, own);
  std::vector<WireReader> readers(answers.begin(), answers.end());
  const std::scoped_lock lock(mutex_);
  for (const std::string& path : paths) {
    std::vector<PathView> views;
    std::vector<const PathView*> pointers;
    views.reserve(readers.size());
    for (WireReader& reader : readers) {
      pass(reader, views.emplace_back());
      pointers.push_back(&views.back());
    }
    // If a rank could not access the path, the step fails, and no rank uses the views of the others.
    if (std::ranges::none_of(views, &PathView::is_unknown)) paths_.add(path, pointers, alike);
  }
  for (Ask* ask : asks_) {
    const PeerPath* known = ask->out.empty() ? paths_.find(ask->file.path()) : nullptr;
    if (known != nullptr && known->is_listed) ask->is_done = true;
  }
  changed_.notify_all();
}

/// A request that is answered in this round.
struct GroupStore::Reply {
  const Wish* wish;
  int holder;
};

/// Chooses the requests to answer, with the same result on all ranks. In one round, a rank sends at most one range to
/// each other rank, and its total sent and received bytes have limits. A different rank has precedence in each round.
std::vector<GroupStore::Reply> GroupStore::choose_replies(std::span<const Wish> wishes, int ranks) {
  const int first = static_cast<int>(meeting_ % static_cast<std::uint64_t>(ranks));
  const auto middle = std::ranges::lower_bound(wishes, first, {}, &Wish::asker);
  std::vector<const Wish*> in_turn;
  for (auto wish = middle; wish != wishes.end(); ++wish) in_turn.push_back(&*wish);
  for (auto wish = wishes.begin(); wish != middle; ++wish) in_turn.push_back(&*wish);

  std::set<std::pair<int, int>> pairs;
  std::set<std::pair<std::string, std::pair<std::int64_t, std::int64_t>>> ranges;
  std::map<int, std::int64_t> sent, received;
  const auto is_too_much = [](std::int64_t bytes, std::int64_t more) {
    return bytes != 0 && bytes + more > kMostReplies;
  };
  std::vector<Reply> replies;
  const std::scoped_lock lock(mutex_);
  for (const Wish* wish : in_turn) {
    const std::string path = wish->file.path();
    const PeerPath* known = paths_.find(path);
    const bool is_there = known != nullptr && known->kind == FileKind::kFile && !paths_.holders(*known).empty();
    if (!is_there || wish->offset_bytes < 0 || wish->offset_bytes > known->bytes - wish->bytes) {
      throw Error(ErrorCode::kPeer, fmt::format("rank {} requested data that does not exist", wish->asker))
          .in_file(path);
    }
    const std::vector<int>& holders = paths_.holders(*known);
    const int holder = holders[static_cast<std::size_t>(wish->asker) % holders.size()];
    const auto range = std::pair(path, std::pair(wish->offset_bytes, wish->bytes));
    const std::int64_t more = ranges.contains(range) ? 0 : wish->bytes;
    if (pairs.contains({holder, wish->asker}) || is_too_much(sent[holder], more)) continue;
    if (is_too_much(received[wish->asker], wish->bytes)) continue;
    pairs.emplace(holder, wish->asker);
    ranges.insert(range);
    sent[holder] += more;
    received[wish->asker] += wish->bytes;
    replies.push_back({wish, holder});
  }
  return replies;
}

/// Sends and receives the replies. Each has a byte that is 1 if the file could be read, and then the file's bytes.
void GroupStore::reply(Group& group, std::span<const Wish> wishes) {
  const auto ranks = static_cast<std::size_t>(group.size());
  std::vector<std::span<const std::byte>> to(ranks);
  std::vector<std::span<std::byte>> from(ranks);
  std::map<std::pair<std::string, std::pair<std::int64_t, std::int64_t>>, Bytes> sent;
  std::vector<std::pair<const Wish*, Bytes>> received;
  const std::vector<Reply> replies = choose_replies(wishes, group.size());
  received.reserve(replies.size());
  for (const Reply& each : replies) {
    const Wish& wish = *each.wish;
    const auto size = static_cast<std::size_t>(wish.bytes) + 1;
    if (wish.asker == rank_) {
      Bytes& bytes = received.emplace_back(&wish, Bytes(size)).second;
      from[static_cast<std::size_t>(each.holder)] = bytes;
    }
    if (each.holder != rank_) continue;
    const auto [entry, is_new] = sent.try_emplace({wish.file.path(), {wish.offset_bytes, wish.bytes}});
    if (is_new) {
      entry->second.resize(size);
      read_into(wish, entry->second);
    }
    to[static_cast<std::size_t>(wish.asker)] = entry->second;
  }
  group.exchange(to, from);
  for (const auto& [wish, bytes] : received) finish_read(*wish, bytes);
}

/// Reads bytes of an own file for a different rank. A file that cannot be read fails the step, because only this rank
/// can report its path.
void GroupStore::read_into(const Wish& wish, std::span<std::byte> out) {
  try {
    const std::string path = wish.file.path();
    if (!served_.contains(path)) {
      if (served_.size() >= kFilesServed) served_.clear();
      served_[path] =
          wish.file.relative.empty() ? own_.open(path) : own_.open_below(wish.file.folder, wish.file.relative);
    }
    served_.at(path)->read_at(wish.offset_bytes, out.subspan(1));
    out.front() = std::byte{1};
  } catch (const Error&) {
    step_->fail(std::current_exception());
  }
}

void GroupStore::finish_read(const Wish& wish, std::span<const std::byte> bytes) {
  if (bytes.front() != std::byte{1}) return;  // The holder of the file ends the step.
  const std::scoped_lock lock(mutex_);
  for (Ask* ask : asks_) {
    const bool is_it = !ask->is_done && ask->offset_bytes == wish.offset_bytes && std::ssize(ask->out) == wish.bytes &&
                       ask->file.path() == wish.file.path();
    if (!is_it) continue;
    std::copy_n(bytes.data() + 1, ask->out.size(), ask->out.data());
    ask->is_done = true;
  }
  changed_.notify_all();
}

void GroupStore::attribute(Error& failure) const {
  if (failure.file().empty()) return;
  const std::scoped_lock lock(mutex_);
  const PeerPath* known = paths_.find_file(failure.file());
  if (known == nullptr) return;
  const std::vector<int>& ranks = paths_.holders(*known);
  if (!ranks.empty() && !std::ranges::binary_search(ranks, rank_)) failure.of_rank(ranks.front());
}

}  // namespace shard
