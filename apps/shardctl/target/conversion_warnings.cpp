#include "apps/shardctl/target/conversion_warnings.h"

#include <fmt/format.h>

#include <algorithm>

#include "apps/shardctl/source/inspect_numbers.h"
#include "formats/finder.h"
#include "formats/parts/hf_index/folder_names.h"
#include "libshard/catalog/quantized.h"
#include "libshard/core/short_text.h"
#include "libshard/io/paths.h"

namespace shard::app {
namespace {

/// A warning about aliases, for a target that can store neither shared storages nor notes.
std::string lost_ties(const OpenSource& source, const SelectionOptions& options) {
  const Catalog& catalog = source.catalog();
  const auto repeats = [](const Tensor& tensor) { return tensor.alias_of != kNoIndex; };
  if (std::ranges::none_of(catalog.tensors, repeats)) return {};
  const Selection selection = choose(catalog, options);
  const Aliases aliases(catalog, selection);
  std::vector<std::string> names;
  for (const SelectedTensor& tensor : selection.tensors) {
    if (aliases.first_of(tensor)) names.emplace_back(tensor.name);
  }
  if (names.empty()) return {};
  return fmt::format("{} stored as {}: {}",
                     names.size() == 1 ? "1 tied tensor is" : fmt::format("{} tied tensors are", names.size()),
                     names.size() == 1 ? "a separate copy" : "separate copies", first_names(names));
}

/// A warning about attributes of Parameters, which only torch's own formats can store.
std::string lost_attributes(const OpenSource& source, const SelectionOptions& options) {
  const Catalog& catalog = source.catalog();
  if (std::ranges::none_of(catalog.stored, &StoredTensor::has_attributes)) return {};
  std::vector<std::string> names;
  for (const SelectedTensor& selected : choose(catalog, options).tensors) {
    const std::span<const Chunk> chunks = catalog.chunks_of(catalog.tensors[selected.source]);
    const auto has_attributes = [&](const Chunk& chunk) { return catalog.stored[chunk.stored].has_attributes; };
    if (std::ranges::any_of(chunks, has_attributes)) names.emplace_back(selected.name);
  }
  if (names.empty()) return {};
  return fmt::format("{} written without the attributes of {}: {}",
                     names.size() == 1 ? std::string("1 tensor is") : fmt::format("{} tensors are", names.size()),
                     names.size() == 1 ? "its Parameter" : "their Parameters", first_names(names));
}

/// Whether the weight of a quantized module cannot be computed without such a tensor.
bool is_of_weight(QuantizedRole role) {
  return role != QuantizedRole::kActivationScale && role != QuantizedRole::kCacheScale && role != QuantizedRole::kOther;
}

/// A warning about quantized modules if the selection has some of the tensors of their weights, but not all.
std::string parted_modules(const OpenSource& source, const SelectionOptions& options) {
  if (options.include.empty() && options.exclude.empty()) return {};
  const Catalog& catalog = source.catalog();
  const QuantizedPart quantized = find_quantized(catalog);
  std::vector<bool> is_selected(catalog.tensors.size());
  for (const std::uint32_t tensor : source_indices(choose(catalog, options).tensors)) is_selected[tensor] = true;
  std::vector<std::string> names;
  for (const QuantizedModule& module : quantized.modules) {
    std::size_t needed = 0, selected = 0;
    for (const QuantizedMember& member : quantized.members_of(module)) {
      if (!is_of_weight(member.role)) continue;
      ++needed;
      selected += is_selected[member.tensor] ? 1 : 0;
    }
    if (selected > 0 && selected < needed) names.emplace_back(module.name);
  }
  if (names.empty()) return {};
  return fmt::format("only some tensors of {} are written, which have a meaning only together: {}",
                     plural(static_cast<std::int64_t>(names.size()), "quantized module"), first_names(names));
}

std::string lost_metadata(const Catalog& catalog, const FormatTraits& traits) {
  std::vector<std::string> keys;
  for (const auto& [key, text] : catalog.metadata) {
    const bool says_nothing = key == "format" && text == "pt";
    if (!says_nothing && !key.starts_with("shardctl.")) keys.push_back(key);
  }
  if (keys.empty()) return {};
  return fmt::format("{} cannot store the source's __metadata__; dropped: {}", traits.name, first_names(keys));
}

/// A warning about files in the source's folder that are not part of the checkpoint, except those that its reader has
/// mentioned, and those that are copied.
std::string other_files(const Session& session, const OpenSource& source, const std::vector<AddedFile>& carried) {
  const Catalog& catalog = source.catalog();
  if (std::ranges::any_of(catalog.warnings, hf_index::is_others_warning))
    return {};  // The reader has mentioned all of them.
  std::set<std::string> read;
  for (const File& file : catalog.files) read.insert(file.path);
  for (const AddedFile& file : carried) read.insert(file.path);
  std::vector<std::string> others = names_beside(session, source, read);
  std::erase_if(others, [&](const std::string& name) {
    return std::ranges::any_of(catalog.warnings, [&](const std::string& each) { return mentions(each, name); });
  });
  return others.empty() ? std::string() : hf_index::others_warning(others);
}

}  // namespace

std::vector<std::string> names_beside(const Session& session, const OpenSource& source,
                                      const std::set<std::string>& read) {
  const SourceStore& store = own_store(session);
  if (source.paths.empty() || !store.is_folder(source.paths.front())) return {};
  if (!holds_files_of(store, source.paths.front(), source.catalog()))
    return {};  // This is the folder of a run, and the checkpoint is in a folder inside it.
  std::set<std::string_view> parts;
  for (const std::string& path : read) parts.insert(std::string_view(path).substr(0, path.find('/')));
  std::vector<std::string> names = store.list(source.paths.front());
  std::erase_if(names, [&](const std::string& name) {
    return name.starts_with('.') || name.ends_with(".index.json") || describes_folder(source.catalog(), name) ||
           parts.contains(name);
  });
  std::erase_if(names, [&](const std::string& name) {
    const FileStatus status = store.status(join_path(source.paths.front(), name));
    return status.kind == FileKind::kFile && status.bytes == 0;
  });
  std::ranges::sort(names);
  return names;
}

std::vector<std::string> loss_warnings(const Session& session, const SelectionOptions& options,
                                       const OpenSource& source, const FormatTraits& traits,
                                       const std::vector<AddedFile>& carried) {
  std::vector<std::string> warnings;
  if (!traits.sharing && !traits.notes) warnings.push_back(lost_ties(source, options));
  if (!traits.sharing) warnings.push_back(lost_attributes(source, options));
  if (!traits.notes) warnings.push_back(lost_metadata(source.catalog(), traits));
  warnings.push_back(parted_modules(source, options));
  warnings.push_back(other_files(session, source, carried));
  std::erase(warnings, std::string());
  return warnings;
}

}  // namespace shard::app
