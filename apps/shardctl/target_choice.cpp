#include "apps/shardctl/target_choice.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "apps/shardctl/command_line.h"
#include "libshard/catalog/glob.h"
#include "libshard/core/error.h"
#include "libshard/io/paths.h"

namespace shard::app {
namespace {

constexpr std::string_view kTorchRanks = "torch-ranks";
constexpr std::int64_t kDefaultFileBytes = 5'000'000'000;  ///< As Hugging Face.

Error usage(const std::string& message) { return Error(ErrorCode::kInvalidArgument, message); }

bool ends_with(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

Error contradiction(const std::string& destination, std::string_view to) {
  return usage(fmt::format("--to {} contradicts the suffix of '{}'", to, destination))
      .hint("drop --to, or give DST another name");
}

/// The format whose single files have DST's suffix, or null. A trailing slash makes any name a folder.
/// \throws Error kUnsupported  the suffix of a format that this build lacks; `to` says another one: kInvalidArgument.
const Format* format_of_suffix(const std::string& destination, const std::string& to) {
  for (const Format& format : formats()) {
    for (const std::string_view suffix : format.suffixes) {
      if (ends_with(destination, suffix) && base_name(destination) != suffix) return &format;
    }
  }
  const bool hdf5 = ends_with(destination, ".h5") || ends_with(destination, ".hdf5");
  if (hdf5 && !to.empty() && to != "hdf5") throw contradiction(destination, format_named(to).traits.name);
  return hdf5 ? &format_named("hdf5") : nullptr;
}

std::string formats_with(bool FormatTraits::*trait) {
  std::vector<std::string_view> names;
  for (const Format& format : formats()) {
    if (format.traits.*trait) names.push_back(format.traits.name);
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

const Format* default_format(const Options& options) {
  if (options.verb == "split" && options.layout.cuts_tensors()) return &format_named("dcp");
  if (options.verb == "split" || options.verb == "gather") return &format_named("safetensors");
  if (options.verb == "reshard") return nullptr;
  throw usage("convert needs to know the format to write")
      .because(fmt::format("'{}' has no suffix that says it", options.output))
      .hint(repeat_command(options, "--to FORMAT"));
}

void check_form(const Options& options, const Format& format) {
  const LayoutOptions& layout = options.layout;
  if (options.rank_files && format.traits.name != kTorchRanks) {
    throw usage(fmt::format("--as says what {} files hold, the format to write is {}", kTorchRanks, format.traits.name))
        .hint(fmt::format("drop --as, or add --to {}", kTorchRanks));
  }
  if (layout.cuts_tensors() && !format.traits.pieces) {
    throw usage(fmt::format("{} holds whole tensors, no pieces of them", format.traits.name))
        .because("--ranks, --mesh, --layout and --like cut tensors")
        .hint(fmt::format("formats that hold pieces: {}; whole tensors in several files: --shards N",
                          formats_with(&FormatTraits::pieces)));
  }
  if (layout.cuts_files() && !format.traits.many_files) {
    throw usage(fmt::format("{} does not take --shards or --max-shard-size", format.traits.name))
        .hint(fmt::format("formats that do: {}", formats_with(&FormatTraits::many_files)));
  }
}

/// "R,_S(0,2)" as "R" and "_S(0,2)".
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

/// "GLOB=P[,P...]"
MeshLayout::Rule parse_place(const std::string& text, std::size_t axes) {
  const std::size_t equals = text.rfind('=');
  if (equals == std::string::npos || equals == 0) {
    throw usage(fmt::format("--place '{}' is not GLOB=P[,P...]", text)).hint("for example --place '**.weight=R,S(0)'");
  }
  const std::string glob = text.substr(0, equals);
  MeshLayout::Rule rule;
  rule.source = "--place " + text;
  rule.matches = [glob](std::string_view name) { return glob_match(glob, name); };
  for (const std::string& word : split_outside_parentheses(text.substr(equals + 1))) {
    rule.placements.push_back(parse_placement(word));
  }
  if (rule.placements.size() == axes) return rule;
  throw usage(fmt::format("--place '{}' has {} placements, the mesh has {} axes", text, rule.placements.size(), axes))
      .expected(static_cast<std::int64_t>(axes))
      .found(static_cast<std::int64_t>(rule.placements.size()))
      .hint("one placement an axis, slowest first");
}

MeshLayout mesh_layout(const LayoutOptions& options) {
  MeshLayout layout;
  layout.mesh = parse_mesh(options.mesh);
  for (const std::string& place : options.place) layout.rules.push_back(parse_place(place, layout.mesh.size()));
  return layout;
}

std::int64_t shard_bytes(const std::string& text) {
  const std::int64_t bytes = parse_size(text, "--max-shard-size");
  if (bytes < 1) throw usage("--max-shard-size must be at least one byte").found(bytes);
  return bytes;
}

Layout default_layout(const Options& options, const TargetForm& form) {
  if (options.verb == "reshard") {
    throw usage("reshard needs a layout to write")
        .hint(repeat_command(options, form.format->traits.pieces ? "--ranks N" : "--shards N"));
  }
  const bool pieces = form.format->traits.pieces;
  if (options.verb == "convert" && pieces) return KeepLayout{};
  if (pieces || form.single_file) return WholeLayout{};
  return SizeLayout{kDefaultFileBytes};
}

/// What the files of ranks shall hold.
RankFiles choose_rank_files(const Options& options, const Catalog& source, const ChosenLayout& layout) {
  if (options.rank_files) return *options.rank_files;
  if (source.rank_files) return *source.rank_files;
  if (layout.like && layout.like->catalog().rank_files) return *layout.like->catalog().rank_files;
  return options.layout.mesh.empty() ? RankFiles::kShardedTensor : RankFiles::kDTensor;
}

}  // namespace

TargetForm choose_form(const Options& options) {
  const Format* by_suffix = format_of_suffix(options.output, options.to);
  const Format* wanted = options.to.empty() ? nullptr : &format_named(options.to);
  if (wanted != nullptr && by_suffix != nullptr && wanted->traits.name != by_suffix->traits.name) {
    throw contradiction(options.output, options.to)
        .because(fmt::format("that suffix is of {}", by_suffix->traits.name));
  }
  const LayoutOptions& layout = options.layout;
  if (by_suffix != nullptr && (layout.cuts_tensors() || layout.cuts_files())) {
    throw usage(fmt::format("'{}' is one file, the layout options ask for a folder", options.output))
        .hint("give DST a name without suffix, or a slash at its end");
  }
  const Format* format = wanted != nullptr ? wanted : by_suffix != nullptr ? by_suffix : default_format(options);
  if (format != nullptr) check_form(options, *format);
  return {format, by_suffix != nullptr};
}

ChosenLayout choose_layout(const Session& session, const Options& options, const TargetForm& form, Log& log) {
  check_form(options, *form.format);
  const LayoutOptions& given = options.layout;
  if (given.ranks) return {RanksLayout{*given.ranks, given.dim.value_or(0)}, nullptr};
  if (!given.mesh.empty()) return {mesh_layout(given), nullptr};
  if (!given.layout.empty()) return {read_layout(session, given.layout), nullptr};
  if (given.shards) return {ShardsLayout{*given.shards}, nullptr};
  if (!given.max_shard_size.empty()) return {SizeLayout{shard_bytes(given.max_shard_size)}, nullptr};
  if (given.like.empty()) return {default_layout(options, form), nullptr};
  Options like_options = options;
  like_options.from.clear();
  like_options.ranks_expected.reset();
  auto like = std::make_unique<OpenSource>(open_source(session, like_options, {given.like}, log));
  return {LikeLayout{&like->catalog()}, std::move(like)};
}

WriteOptions choose_write_options(const Options& options, const TargetForm& form, const Catalog& source,
                                  const ChosenLayout& layout) {
  WriteOptions write;
  write.single_file = form.single_file;
  write.base_name = base_name(options.output);
  write.rank_files = choose_rank_files(options, source, layout);
  return write;
}

}  // namespace shard::app
