#include <algorithm>
#include <string>
#include <vector>

#include "formats/parts/pickle/opcodes.h"
#include "formats/parts/zip/bytes.h"
#include "formats/torch/legacy_file.h"
#include "formats/torch/reader.h"
#include "formats/torch/saved_files.h"
#include "formats/torch_ranks/format.h"
#include "formats/torch_ranks/rank_source.h"
#include "formats/torch_ranks/sharded_values.h"
#include "libshard/catalog/tree.h"
#include "libshard/core/error.h"
#include "libshard/core/suffixes.h"
#include "libshard/io/paths.h"

namespace shard::torch_ranks {

namespace {

constexpr std::string_view kModule = "torch.distributed.";  // The start of the module names of all sharded classes.
constexpr std::int64_t kScanBytes = 1 << 20;

/// True if the module's name is in [begin, end) of the file.
bool names_module(const RandomReader& file, std::int64_t begin, std::int64_t end) {
  std::string block;
  for (std::int64_t at = begin; at < end; at += kScanBytes) {
    const std::int64_t overlap = std::ssize(kModule) - 1;
    block.resize(static_cast<std::size_t>(std::min(kScanBytes + overlap, end - at)));
    file.read_at(at, std::as_writable_bytes(std::span(block)));
    if (block.find(kModule) != std::string::npos) return true;
  }
  return false;
}

/// The offset of a zip's pickle, which torch writes first; -1 for a different record, or if it is compressed.
std::int64_t pickle_begin(const RandomReader& file) {
  std::vector<std::byte> head(static_cast<std::size_t>(zip::kLocalBytes));
  if (file.size() < zip::kLocalBytes) return -1;
  file.read_at(0, head);
  const std::int64_t name_bytes = zip::load<std::uint16_t>(head, 26), extra_bytes = zip::load<std::uint16_t>(head, 28);
  if (zip::load<std::uint16_t>(head, 8) != 0 || file.size() < zip::kLocalBytes + name_bytes + extra_bytes) return -1;
  std::string name(static_cast<std::size_t>(name_bytes), '\0');
  file.read_at(zip::kLocalBytes, std::as_writable_bytes(std::span(name)));
  return name.ends_with("/data.pkl") ? zip::kLocalBytes + name_bytes + extra_bytes : -1;
}

/// False only if the file's pickle certainly names no class of torch.distributed.
bool may_hold_sharded(const RandomReader& file) {
  if (torch_save::is_legacy_file(file)) return true;
  const std::int64_t begin = pickle_begin(file);
  return begin < 0 || names_module(file, begin, begin + pickle::scan(file, begin));
}

bool holds_sharded(const SourceStore& store, const std::string& path) {
  if (!may_hold_sharded(*store.open(path))) return false;
  Catalog catalog = source_catalog();
  torch_save::SavedFiles files(store, catalog, {.folder = {}, .opaque_globals = true});
  bool found = false;
  visit_leaves(
      *catalog.arena, *files.add(path), [](const Value&) { return false; },
      [&found](const TreeLeaf& leaf) {
        const bool wrapped =
            leaf.value->is_call_of("torch._utils", "_rebuild_parameter") && !leaf.value->items().empty();
        found = found || is_sharded(wrapped ? *leaf.value->items()[0] : *leaf.value);
      });
  return found;
}

/// True for a folder of a different format, which may also contain files with torch's suffixes (training_args.bin,
/// optimizer.pt).
bool is_other_folder(const std::vector<std::string>& names) {
  return std::ranges::any_of(names, [](const std::string& name) {
    return name == ".metadata" || name.ends_with(".metadata") || name.ends_with(kSafetensorsSuffix) ||
           name.ends_with(".distcp") || name.ends_with(".bin.index.json") || name == "pytorch_model.bin" ||
           name.starts_with("pytorch_model-");
  });
}

bool is_torch_file(const SourceStore* store, const std::string& path) {
  return store->is_file(path) && !path.ends_with(".json") && torch_save::detect(Source{store, {path}});
}

/// A single file belongs to a rank if it contains a sharded tensor, or if a layout document is beside it.
bool is_rank_file(const Source& source, const RankSource& files, const std::string& path) {
  return is_torch_file(source.store, path) &&
         ((!files.layout.empty() && !files.folder.empty()) || holds_sharded(*source.store, path));
}

bool detect_files(const Source& source) {
  const bool is_folder = is_one_folder(source);
  if (is_folder && is_other_folder(source.store->list(source.paths[0]))) return false;
  const RankSource files = find_rank_files(source);
  std::vector<std::string> paths = files.names;
  if (is_folder) std::ranges::for_each(paths, [&](std::string& name) { name = join_path(files.folder, name); });
  if (paths.empty()) return false;
  if (paths.size() == 1) return is_rank_file(source, files, paths.front());
  const auto is_torch = [&](const std::string& path) { return is_torch_file(source.store, path); };
  if (std::ranges::all_of(paths, is_torch)) return true;
  // One of the ranks' files may be damaged; the reader names it.
  const auto first = std::ranges::find_if(paths, is_torch);
  return first != paths.end() && is_rank_file(source, files, *first);
}

}  // namespace

bool detect(const Source& source) {
  try {
    return detect_files(source);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kNotFound || !is_about_content(error)) throw;  // The file cannot be read at all.
    return false;  // A damaged file proves nothing. The format that claims it reports the damage.
  }
}

}  // namespace shard::torch_ranks
