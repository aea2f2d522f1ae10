#include "formats/open/source.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <string_view>

#include "formats/detect.h"
#include "formats/open/map_choice.h"
#include "formats/open/placeholder_file.h"
#include "formats/open/requested_adapters.h"
#include "formats/parts/quantization/config.h"
#include "formats/registry.h"
#include "libshard/compute/computed_reader.h"
#include "libshard/compute/find_formulas.h"
#include "libshard/core/ascii.h"
#include "libshard/core/error.h"
#include "libshard/core/object_faults.h"
#include "libshard/core/short_text.h"
#include "libshard/io/paths.h"
#include "libshard/io/small_text.h"
#include "libshard/io/url_path.h"
#include "libshard/map/documents/layout_document.h"
#include "libshard/repair/salvaged_reader.h"

namespace shard {
namespace {

constexpr std::int64_t kMaxLayoutBytes = 64 << 20;

/// True for "ORG/NAME", the form of model names on the Hugging Face Hub: two parts, no format's suffix, and no path.
bool is_hub_name(std::string_view path) {
  const std::size_t slash = path.find('/');
  if (slash == 0 || slash == std::string_view::npos || slash != path.rfind('/') || slash + 1 == path.size())
    return false;
  return path.front() != '.' && is_alphanumeric(path, "-_./") && format_of_suffix(path).empty();
}

/// Selects the items that a repair copies unchanged; null: all.
IsWanted wanted_by(const SelectionOptions* options) {
  if (options == nullptr) return {};
  return [is_chosen = name_filter(*options), keep_objects = options->keep_objects](const Originals::Kept& kept) {
    return (keep_objects || !kept.is_object) && is_chosen(kept.name);
  };
}

/// Sets `rank_paths` and `format`.
void find_format(const SourcePlace& place, const SourceRequest& request, SearchFor search, OpenSource& opened) {
  const Format* const of_ranks =
      request.map.empty() ? nullptr : &map_format(open_map(place, request.map).files_of_ranks().container);
  if (of_ranks != nullptr && (request.from.empty() || request.from == of_ranks->traits.name)) {
    opened.rank_paths = named_ranks(place, request);
  }
  opened.format = opened.rank_paths      ? of_ranks
                  : request.from.empty() ? &detect_format({&place.store, request.paths}, search)
                                         : &format_named(request.from);
}

/// Replaces quantized modules by plain weights.
void dequantize(const SourcePlace& place, const SourceRequest& request, const SourceOptions& options,
                Findings& findings, OpenSource& opened) {
  const std::size_t before = opened.catalog().tensors.size();
  const QuantizationFacts facts = facts_beside(place.store, opened, request.numbers.hf_ref);
  opened.reader = dequantized(std::move(opened.reader), *request.dequantize, facts, findings);
  const auto* const computed = dynamic_cast<const ComputedReader*>(opened.reader.get());
  if (options.on_computed && computed != nullptr) options.on_computed(*computed);
  if (computed != nullptr) opened.computed.push_back(computed);
  if (!options.on_step) return;
  options.on_step(fmt::format("dequantized to {}: {} of {}", dtype_name(*request.dequantize),
                              plural(std::ssize(opened.catalog().tensors), "tensor"), before));
}

/// Lets the sink skip gaps and overlaps of tensors that the selection excludes. A computed or mapped tensor may need a
/// stored one of any name.
void skip_unselected_gaps(const SourceRequest& request, const SourceOptions& options) {
  auto* const faults = dynamic_cast<ObjectFaults*>(options.findings);
  if (faults == nullptr || options.selection == nullptr || request.dequantize || !request.map.empty() ||
      !request.adapters.empty()) {
    return;
  }
  if (options.selection->include.empty() && options.selection->exclude.empty()) return;
  faults->leave_out([is_chosen = name_filter(*options.selection)](std::string_view name) { return !is_chosen(name); });
}

/// Opens the reader of the format, and computes and drops tensors as the options require.
void open_reader(const SourcePlace& place, const SourceRequest& request, const SourceOptions& options,
                 OpenSource& opened) {
  OpenOptions how;
  skip_unselected_gaps(request, options);
  how.findings = options.findings;
  how.threads = place.threads;
  how.opaque_globals = opened.opaque_globals = request.opaque_globals;
  how.choices = request.choices;
  how.ranks_expected = request.ranks_expected;
  how.metadata_only = options.metadata_only;
  if (!request.layout.empty()) {
    opened.layout = std::make_unique<MeshLayout>(read_layout(place.store, request.layout));
    how.layout = opened.layout.get();
  }
  if (!request.map.empty()) how.own_tensors = open_map(place, request.map).has_mesh();
  if (opened.rank_paths) how.rank_paths = &*opened.rank_paths;
  how.like = options.like;
  if (options.salvage != nullptr) how.findings = options.salvage;
  opened.reader = opened.format->open({&place.store, request.paths}, how);
  if (request.dequantize) dequantize(place, request, options, *how.findings, opened);
  if (options.salvage == nullptr) return;
  opened.reader =
      without_losses(std::move(opened.reader), *options.salvage, place.threads, wanted_by(options.selection));
  opened.computed.clear();  // Storages of that reader have different numbers.
}

/// The error for the placeholder in place of the file that could not be read, or `error` if it is none.
Error explained(const SourceStore& store, const std::vector<std::string>& paths, const Error& error) try {
  if (error.file().empty() || !is_damage(error)) return error;
  const std::optional<Error> placeholder = PlaceholderFiles(store, paths).of_file(error.file());
  return placeholder && placeholder->code() == error.code() ? *placeholder : error;
} catch (const Error&) {
  return error;  // The folder cannot be listed.
}

}  // namespace

void check_exists(const SourceStore& store, const std::vector<std::string>& paths) {
  for (const std::string& path : paths) {
    if (store.exists(path)) continue;
    if (const auto placeholder = placeholder_at(store, path)) throw Error(*placeholder);
    Error absent(ErrorCode::kNotFound, path + ": no such file or folder");
    if (is_hub_name(path)) {
      absent.because("it looks like the name of a model on the Hugging Face Hub")
          .hint(fmt::format("read it from the Hub as hf://{0}, or download it: hf download {0} --local-dir {1}", path,
                            base_name(path)));
    }
    if (is_url(path) && path.find("//", root_bytes(path)) < path.find_last_not_of('/')) {
      absent.hint("'//' is a part of names in a store: write one slash if the name has only one");
    }
    throw absent.in_file(path);
  }
}

OpenSource open_source(const SourcePlace& place, const SourceRequest& request, const SourceOptions& options) {
  OpenSource opened;
  opened.paths = request.paths;
  opened.label = fmt::format("{}", fmt::join(request.paths, " "));
  check_exists(place.store, request.paths);
  find_format(place, request, options.salvage != nullptr ? SearchFor::kDamagedToo : SearchFor::kIntact, opened);
  if (options.on_detail) options.on_detail(fmt::format("{}: format {}", opened.label, opened.format->traits.name));
  try {
    open_reader(place, request, options, opened);
  } catch (const Error& error) {
    throw explained(place.store, request.paths, error);
  }
  if (!options.keeps_map) undo_map_and_merge(place, request, options, opened);
  return opened;
}

MeshLayout read_layout(const SourceStore& store, const std::string& path) {
  return parse_layout_document(whole_text(*store.open(path), kMaxLayoutBytes), path);
}

QuantizationFacts facts_beside(const SourceStore& store, const OpenSource& source, const std::string& reference) {
  if (source.paths.empty()) return {};
  const std::string& path = source.paths.front();
  QuantizationFacts facts = read_quantization(store, store.is_folder(path) ? path : parent_path(path));
  return facts.is_quantized || reference.empty() ? std::move(facts) : read_quantization(store, reference);
}

}  // namespace shard
