#include "libshard/job/seen_paths.h"

#include <fmt/format.h>

#include <algorithm>

#include "libshard/core/error.h"
#include "libshard/io/paths.h"

namespace shard {

namespace {

constexpr std::int64_t kKinds = static_cast<std::int64_t>(FileKind::kOther) + 1;

const char* kind_text(FileKind kind) {
  switch (kind) {
    case FileKind::kFile:
      return "a file";
    case FileKind::kFolder:
      return "a folder";
    default:
      return "neither a file nor a folder";
  }
}

std::string seen_text(FileKind kind, std::int64_t bytes) {
  return kind == FileKind::kFile ? fmt::format("{} bytes", bytes) : kind_text(kind);
}

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

void write_view(WireWriter& to, const PathView& view) {
  to.number(static_cast<std::int64_t>(view.kind));
  to.number(view.bytes);
  to.number(view.is_unknown ? 1 : 0);
  to.number(std::ssize(view.entries));
  for (const PathView::Entry& entry : view.entries) {
    to.text(entry.name);
    to.number(static_cast<std::int64_t>(entry.kind));
    to.number(entry.bytes);
  }
}

PathView read_view(WireReader& from) {
  PathView view;
  view.kind = static_cast<FileKind>(from.number_below(kKinds));
  view.bytes = from.number();
  view.is_unknown = from.number_below(2) == 1;
  for (std::int64_t left = from.number(); left > 0; --left) {
    PathView::Entry& entry = view.entries.emplace_back();
    entry.name = from.text();
    entry.kind = static_cast<FileKind>(from.number_below(kKinds));
    entry.bytes = from.number();
  }
  return view;
}

void SeenPaths::add(const std::string& path, std::span<const PathView* const> views,
                    std::span<const std::vector<int>> ranks) {
  std::vector<std::pair<std::size_t, PathView::Entry>> seen;
  std::map<std::string, std::vector<std::pair<std::size_t, PathView::Entry>>> entries;
  for (std::size_t i = 0; i < views.size(); ++i) {
    if (views[i]->kind == FileKind::kAbsent) continue;
    seen.emplace_back(i, PathView::Entry{{}, views[i]->kind, views[i]->bytes});
    for (const PathView::Entry& entry : views[i]->entries) entries[entry.name].emplace_back(i, entry);
  }
  add_one(path, seen, ranks);
  SeenPath& folder = paths_.at(path);
  folder.is_listed = true;
  folder.names.clear();
  for (const auto& [name, of_views] : entries) {
    folder.names.push_back(name);
    add_one(join_path(path, name), of_views, ranks);
  }
}

void SeenPaths::add_one(const std::string& path, std::span<const std::pair<std::size_t, PathView::Entry>> seen,
                        std::span<const std::vector<int>> ranks) {
  const auto [entry, is_new] = paths_.try_emplace(path);
  SeenPath& all = entry->second;
  if (!is_new) return;  // What was seen first holds for the whole job.
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

std::uint32_t SeenPaths::holders_of(const std::vector<std::size_t>& views, std::span<const std::vector<int>> ranks) {
  std::vector<int> all;
  for (const std::size_t view : views) all.insert(all.end(), ranks[view].begin(), ranks[view].end());
  std::ranges::sort(all);
  if (all.empty()) return 0;
  const auto [known, is_new] = known_holders_.try_emplace(all, static_cast<std::uint32_t>(holders_.size()));
  if (is_new) holders_.push_back(std::move(all));
  return known->second;
}

const SeenPath* SeenPaths::find(const std::string& path) const {
  static const SeenPath nothing = [] {
    SeenPath absent;
    absent.is_listed = true;
    return absent;
  }();
  if (const auto found = paths_.find(path); found != paths_.end()) return &found->second;
  const auto above = paths_.find(parent_path(path));
  return above != paths_.end() && above->second.is_listed ? &nothing : nullptr;
}

const SeenPath* SeenPaths::find_file(const std::string& end_of_path) const {
  if (const auto exact = paths_.find(end_of_path); exact != paths_.end()) return &exact->second;
  const SeenPath* found = nullptr;
  for (const auto& [path, seen] : paths_) {
    if (seen.kind != FileKind::kFile || !path.ends_with("/" + end_of_path)) continue;
    if (found != nullptr) return nullptr;
    found = &seen;
  }
  return found;
}

void check_agreement(const SeenPath& seen, const std::vector<int>& holders, const std::string& path) {
  if (seen.other < 0) return;
  throw Error(ErrorCode::kCorruption,
              fmt::format("ranks {} and {} have different files with the same name", holders.front(), seen.other))
      .in_file(path)
      .of_kind(FindingKind::kMixedSave)
      .expected(fmt::format("{} on rank {}", seen_text(seen.kind, seen.bytes), holders.front()))
      .found(fmt::format("{} on rank {}", seen_text(seen.other_kind, seen.other_bytes), seen.other));
}

}  // namespace shard
