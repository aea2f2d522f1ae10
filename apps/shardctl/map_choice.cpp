#include "apps/shardctl/map_choice.h"

#include <fmt/format.h>

#include <algorithm>

#include "apps/shardctl/command_line.h"
#include "apps/shardctl/model_folder.h"
#include "libshard/catalog/glob.h"
#include "libshard/core/error.h"
#include "libshard/core/nearest.h"
#include "libshard/io/paths.h"
#include "libshard/map/builtin_maps.h"
#include "libshard/map/mapped_reader.h"

namespace shard::app {
namespace {

constexpr std::int64_t kMaxBytes = 16 << 20;  ///< Of a document, or a config.json.
constexpr std::string_view kArguments = "args.";

std::string read_text(const Session& session, const std::string& path) {
  const auto file = source_store(session).open(path);
  const std::vector<std::byte> bytes = read_whole(*file, kMaxBytes);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::vector<std::pair<std::string, std::string>> parse_numbers(const std::vector<std::string>& set) {
  std::vector<std::pair<std::string, std::string>> numbers;
  for (const std::string& text : set) {
    const std::size_t equals = text.find('=');
    if (equals == std::string::npos || equals == 0) {
      throw usage(fmt::format("--set '{}' is not NAME=VALUE", text)).hint("give a number such as --set heads=32");
    }
    numbers.emplace_back(text.substr(0, equals), text.substr(equals + 1));
  }
  return numbers;
}

std::optional<MapValue> argument_of(const Catalog& catalog, std::string_view name) {
  const std::string wanted = std::string(kArguments) + std::string(name);
  const auto object = std::ranges::find(catalog.objects, wanted, &Object::name);
  if (object == catalog.objects.end() || object->value == nullptr) return std::nullopt;
  const Value& value = *object->value;
  if (value.kind == ValueKind::kInt || value.kind == ValueKind::kBool) return value.number;
  if (value.kind == ValueKind::kString) return std::string(value.text());
  return std::nullopt;
}

}  // namespace

std::string find_config(const Session& session, const MapNumbers& numbers, const std::vector<std::string>& sources) {
  const SourceStore& store = source_store(session);
  if (!numbers.hf_ref.empty()) {
    const std::string path = join_path(numbers.hf_ref, kConfigName);
    if (store.status(path).kind == FileKind::kFile) return path;
    throw Error(ErrorCode::kNotFound, fmt::format("--hf-ref {} has no config.json", numbers.hf_ref)).in_file(path);
  }
  for (const std::string& path : sources) {
    const std::string folder = find_model_folder(store, path, path);
    if (!folder.empty()) return join_path(folder, kConfigName);
  }
  return {};
}

std::int64_t ranks_of(const Catalog& catalog) {
  const auto is_of_a_rank = [](const Tensor& tensor) { return tensor.rank >= 0; };
  return std::ranges::any_of(catalog.tensors, is_of_a_rank) ? catalog.world_size.value_or(1) : 1;
}

std::string read_map_text(const Session& session, const std::string& name) {
  if (const BuiltinMap* const map = find_builtin_map(name)) return std::string(map->text);
  if (source_store(session).status(name).kind != FileKind::kAbsent) return read_text(session, name);
  std::vector<std::string_view> names;
  for (const BuiltinMap& map : builtin_maps()) names.push_back(map.name);
  const std::string near = nearest(name, names);
  throw usage(fmt::format("'{}' is not a built-in map and not a file", name))
      .hint(near.empty() ? "list the built-in ones with 'shardctl map list'" : fmt::format("did you mean '{}'?", near));
}

bool has_mesh(const Session& session, const std::string& name) {
  return !parse_map_document(read_map_text(session, name), name).mesh.empty();
}

ModelMap choose_map(const Session& session, const std::string& name, const MapNumbers& numbers,
                    const OpenSource& source, MapUse use, std::int64_t ranks) {
  MapDocument document = parse_map_document(read_map_text(session, name), name);
  MapInputs inputs;
  inputs.given = parse_numbers(numbers.set);
  inputs.config_file = find_config(session, numbers, source.paths);
  if (!inputs.config_file.empty()) inputs.config = read_text(session, inputs.config_file);
  const auto reads_arguments = [](const MapVariable& variable) {
    return std::ranges::any_of(variable.from, [](const std::string& from) { return from.starts_with(kArguments); });
  };
  if (std::ranges::any_of(document.vars, reads_arguments)) source.reader->load_objects();
  inputs.argument = [&](std::string_view argument) { return argument_of(source.catalog(), argument); };
  inputs.ranks = ranks;
  (use == MapUse::kUndo ? inputs.stored : inputs.logical) = &source.catalog();
  MapVariables variables(document, inputs);
  return ModelMap(std::move(document), std::move(variables));
}

void undo_map(const Session& session, const SourceOptions& options, const SelectionOptions* selection,
              OpenSource& source, Log& log) {
  const ModelMap map =
      choose_map(session, options.map, options.numbers, source, MapUse::kUndo, ranks_of(source.catalog()));
  std::function<bool(std::string_view)> leaves_out;
  if (selection != nullptr && (!selection->include.empty() || !selection->exclude.empty())) {
    const auto include = std::make_shared<GlobSet>(selection->include),
               exclude = std::make_shared<GlobSet>(selection->exclude);
    const bool has_include = !selection->include.empty();
    leaves_out = [=](std::string_view name) {
      return !exclude->matching(name).empty() || (has_include && include->matching(name).empty());
    };
  }
  auto reader = std::make_unique<MappedReader>(std::move(source.reader), map, leaves_out);
  log.info(fmt::format("undid map {}: {} tensors, {} of them as stored, {} left out", options.map,
                       reader->catalog().tensors.size(), reader->undone().copied(), reader->undone().dropped()));
  source.is_mapped = true;
  source.reader = std::move(reader);
}

}  // namespace shard::app
