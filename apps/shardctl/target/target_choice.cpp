#include "apps/shardctl/target/target_choice.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "apps/shardctl/request/command_text.h"
#include "formats/plugins.h"
#include "formats/registry.h"
#include "libshard/catalog/selection/glob.h"
#include "libshard/core/ascii.h"
#include "libshard/core/error.h"
#include "libshard/core/nearest.h"
#include "libshard/core/short_text.h"
#include "libshard/io/paths.h"

namespace shard::app {
namespace {

constexpr std::int64_t kDefaultFileBytes = 5'000'000'000;  ///< Same as Hugging Face.

Error contradiction(const std::string& destination, std::string_view to) {
  return usage(fmt::format("--to {} contradicts the suffix of '{}'", to, destination))
      .hint("drop --to, or give DST a different suffix");
}

/// The format whose single files have DST's suffix, or null.
/// \throws Error kUnsupported  this build lacks the suffix's format; kInvalidArgument  `wanted` is a different format.
const Format* choose_by_suffix(const std::string& destination, const Format* wanted) {
  const std::string_view name = format_of_suffix(destination);
  if (name.empty()) return nullptr;
  if (wanted != nullptr && wanted->traits.name != name) {
    throw contradiction(destination, wanted->traits.name).because(fmt::format("that suffix means {}", name));
  }
  return &format_named(name);
}

/// The end of DST's name that looks like a file suffix: a dot and a word that begins with a letter. Empty if the name
/// ends in a slash, and for numbers as in "Qwen2.5-7B".
std::string_view suffix_of(std::string_view destination) {
  const std::string_view name = destination.substr(destination.rfind('/') + 1);
  const std::size_t dot = name.rfind('.');
  if (dot == std::string_view::npos || dot == 0 || dot + 1 == name.size()) return {};
  const std::string_view word = name.substr(dot + 1);
  return is_letter(word.front()) && is_alphanumeric(word, "_") ? name.substr(dot) : std::string_view();
}

/// Refuses a destination such as "m.safetensor", which would become a folder of that name.
/// \throws Error kInvalidArgument
void refuse_unknown_suffix(const std::string& destination) {
  const std::string_view suffix = suffix_of(destination);
  if (suffix.empty()) return;
  const std::vector<std::string_view> known = known_suffixes();
  const std::string near = nearest(suffix, known);
  throw usage(fmt::format("the suffix '{}' of '{}' does not name a format", suffix, destination))
      .because(fmt::format("one file ends in {}", fmt::join(known, ", ")))
      .hint(near.empty() ? "give DST one of these suffixes, or a slash at its end to write a folder of that name"
                         : fmt::format("did you mean '{}{}'? A slash at its end writes a folder of that name",
                                       destination.substr(0, destination.size() - suffix.size()), near));
}

/// The names of the formats for which `fits` is true, in one line.
template <class Fits>
std::string formats_that(const Fits& fits) {
  load_installed_plugins();
  std::vector<std::string_view> names;
  for (const Format* format : formats()) {
    if (fits(*format)) names.push_back(format->traits.name);
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

std::string formats_with(bool FormatTraits::*trait) {
  return formats_that([trait](const Format& format) { return format.traits.*trait && format.make_writer != nullptr; });
}

const Format* default_format(const Session& session, const WriteRequest& write) {
  const TargetDefaults& defaults = write.defaults;
  if (defaults.keeps_format) return nullptr;
  const bool is_cut = write.layout.cuts_tensors() && !defaults.format_of_pieces.empty();
  const std::string_view name = is_cut ? defaults.format_of_pieces : defaults.format;
  if (!name.empty()) return &format_named(std::string(name));
  throw usage(fmt::format("{} needs an output format", session.command.verb))
      .because(fmt::format("the suffix of '{}' does not imply one", write.path))
      .hint(repeat_command(session.command.arguments, "--to FORMAT"));
}

}  // namespace

Error holds_whole_tensors(const Format& format) {
  return usage(fmt::format("{} stores only whole tensors", format.traits.name))
      .because("--ranks, --mesh, --layout and --like shard tensors")
      .hint(fmt::format("write a format that stores shards ({}), or whole tensors in several files with --shards N",
                        formats_with(&FormatTraits::pieces)));
}

namespace {

/// Refuses options that the library would refuse later. Here the source is not open yet, and the hint can name the
/// formats that support the option.
void check_form(const WriteRequest& write, const Format& format) {
  const LayoutRequest& layout = write.layout;
  if (!format.is_written()) {
    throw Error(ErrorCode::kUnsupported, fmt::format("this build cannot write {}, only read it", format.traits.name))
        .hint(fmt::format("write one of {}", formats_that([](const Format& each) { return each.is_written(); })));
  }
  const auto inapplicable = [&](std::string_view option, std::string_view owners) {
    return usage(
               fmt::format("--{} applies only to {}, but the output format is {}", option, owners, format.traits.name))
        .hint(fmt::format("drop --{}, or add --to {}", option, owners));
  };
  if (write.rank_files && !format.has_rank_kinds) {
    throw inapplicable("as", formats_that(std::mem_fn(&Format::has_rank_kinds)));
  }
  for (const FormatOption& option : format_options(&Format::write_options)) {
    if (!write.choices.contains(option.name) || has_option(format.write_options, option.name)) continue;
    throw inapplicable(option.name, option.owners);
  }
  const bool is_maps_to_say = !write.map.empty() && layout.ranks;  // check_layout_of_map decides.
  if (layout.cuts_tensors() && !format.traits.pieces && !is_maps_to_say) {
    throw holds_whole_tensors(format);
  }
  if (layout.cuts_files() && !format.traits.many_files) {
    throw usage(fmt::format("{} does not take --shards or --max-shard-size", format.traits.name))
        .hint(fmt::format("write one of {}", formats_with(&FormatTraits::many_files)));
  }
}

/// Splits "R,_S(0,2)" into "R" and "_S(0,2)".
std::vector<std::string> split_outside_parentheses(std::string_view text) {
  std::vector<std::string> words(1);
  int depth = 0;
  for (const char c : text) {
    depth += (c == '(') - (c == ')');
    if (c == ',' && depth <= 0) {
      words.emplace_back();
    } else {
      words.back() += c;
    }
  }
  return words;
}

/// The rule "GLOB=P[,P...]", and its glob.
std::pair<MeshLayout::Rule, std::string> parse_place(const std::string& text, std::size_t axes) {
  const std::size_t equals = text.rfind('=');
  if (equals == std::string::npos || equals == 0) {
    throw usage(fmt::format("--place '{}' is not GLOB=P[,P...]", text))
        .hint("give a rule such as --place '**.weight=R,S(0)'");
  }
  const std::string glob = text.substr(0, equals);
  MeshLayout::Rule rule;
  rule.source = "--place " + text;
  for (const std::string& word : split_outside_parentheses(text.substr(equals + 1))) {
    rule.placements.push_back(parse_placement(word));
  }
  if (rule.placements.size() == axes) return {std::move(rule), glob};
  throw usage(fmt::format("--place '{}' has {}, but the mesh has {}", text,
                          plural(std::ssize(rule.placements), "placement"),
                          plural(static_cast<std::int64_t>(axes), "axis", "axes")))
      .expected(static_cast<std::int64_t>(axes))
      .found(static_cast<std::int64_t>(rule.placements.size()))
      .hint("give one placement per axis, slowest first");
}

MeshLayout mesh_layout(const LayoutRequest& options) {
  MeshLayout layout;
  layout.mesh = parse_mesh(options.mesh);
  const auto globs = std::make_shared<GlobSet>();
  for (const std::string& place : options.place) {
    auto [rule, glob] = parse_place(place, layout.mesh.size());
    layout.rules.push_back(std::move(rule));
    globs->add(glob);
  }
  layout.matching = [globs](std::string_view name) { return globs->matching(name); };
  return layout;
}

std::int64_t shard_bytes(const std::string& text) {
  const std::int64_t bytes = parse_size(text, "--max-shard-size");
  if (bytes < 1) throw usage("--max-shard-size must be at least one byte").found(bytes);
  return bytes;
}

Layout default_layout(const Session& session, const WriteRequest& write, const TargetForm& form) {
  const FormatTraits& traits = form.format->traits;
  const bool pieces = traits.pieces && !traits.prefers_whole;
  if (write.defaults.needs_layout) {
    throw usage(fmt::format("{} needs a layout to write", session.command.verb))
        .hint(repeat_command(session.command.arguments, traits.pieces ? "--ranks N" : "--shards N"));
  }
  if (write.defaults.keeps_layout && pieces) return KeepLayout{};
  if (pieces || form.single_file) return WholeLayout{};
  return SizeLayout{kDefaultFileBytes};
}

/// The kind of tensors in files of ranks.
RankFiles choose_rank_files(const WriteRequest& write, const Catalog& source, const ChosenLayout& layout) {
  if (write.rank_files) return *write.rank_files;
  if (source.rank_files) return *source.rank_files;
  if (layout.like && layout.like->catalog().rank_files) return *layout.like->catalog().rank_files;
  return write.layout.mesh.empty() ? RankFiles::kShardedTensor : RankFiles::kDTensor;
}

}  // namespace

TargetForm choose_form(const Session& session, const WriteRequest& write) {
  const Format* wanted = write.to.empty() ? nullptr : &format_named(write.to);
  const Format* by_suffix = choose_by_suffix(write.path, wanted);
  const LayoutRequest& layout = write.layout;
  if (by_suffix != nullptr && (layout.cuts_tensors() || layout.cuts_files())) {
    throw usage(fmt::format("'{}' is a single file, but the layout options need a folder", write.path))
        .hint("use a DST without a suffix, or end it with a slash");
  }
  if (by_suffix == nullptr && wanted == nullptr && !layout.cuts_tensors() && !layout.cuts_files() &&
      !write.defaults.always_folder) {
    refuse_unknown_suffix(write.path);
  }
  const Format* format = wanted != nullptr ? wanted : by_suffix != nullptr ? by_suffix : default_format(session, write);
  if (format != nullptr) check_form(write, *format);
  return {format, by_suffix != nullptr};
}

ChosenLayout choose_layout(const Session& session, const WriteRequest& write, bool opaque_globals,
                           const TargetForm& form, Log& log) {
  check_form(write, *form.format);
  const LayoutRequest& given = write.layout;
  if (given.ranks) return {RanksLayout{*given.ranks, given.dim.value_or(0)}, nullptr};
  if (!given.mesh.empty()) return {mesh_layout(given), nullptr};
  if (!given.layout.empty()) return {read_layout(source_store(session), given.layout), nullptr};
  if (given.shards) return {ShardsLayout{*given.shards}, nullptr};
  if (!given.max_shard_size.empty()) return {SizeLayout{shard_bytes(given.max_shard_size)}, nullptr};
  if (given.like.empty()) return {default_layout(session, write, form), nullptr};
  ReadRequest like_request;
  like_request.paths = {given.like};
  like_request.opaque_globals = opaque_globals;
  try {
    auto like = std::make_unique<OpenSource>(open_source(session, like_request, log, {.of_other_ranks = true}));
    return {LikeLayout{&like->catalog(), given.like}, std::move(like)};
  } catch (const Error& error) {
    throw Error(error).in_file(given.like);
  }
}

WriteOptions choose_write_options(const WriteRequest& write, const TargetForm& form, const Catalog& source,
                                  const ChosenLayout& layout) {
  WriteOptions options;
  options.single_file = form.single_file;
  options.base_name = base_name(write.path);
  options.rank_files = choose_rank_files(write, source, layout);
  options.choices = write.choices;
  return options;
}

}  // namespace shard::app
