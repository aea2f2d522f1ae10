#include "formats/registry.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>
#include <set>

#include "formats/dcp/format.h"
#include "formats/foreign.h"
#include "formats/safetensors/format.h"
#include "formats/torch/format.h"
#include "libshard/core/error.h"

namespace shard {

namespace {

/// Names that mean something, but not in this build.
constexpr std::array<std::string_view, 9> kLaterFormats{
    "dcp-hf", "torch-ranks", "hdf5", "megatron", "megatron-dist", "deepspeed", "deepspeed-universal", "vllm", "llama",
};

/// Levenshtein's distance by rows.
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, diagonal + 1, row[j] + 1});
    }
  }
  return row.back();
}

std::vector<std::string_view> names_of(std::span<const Format* const> all) {
  std::vector<std::string_view> names;
  for (const Format* format : all) names.push_back(format->traits.name);
  return names;
}

std::string all_names() {
  std::vector<const Format*> all;
  for (const Format& format : formats()) all.push_back(&format);
  return fmt::format("{}", fmt::join(names_of(all), ", "));
}

std::string shown(const Source& source) {
  return source.paths.size() == 1 ? source.paths.front() : fmt::format("{} files", source.paths.size());
}

bool has_suffix_of(const Format& format, std::string_view name) {
  return std::ranges::any_of(format.suffixes, [&](std::string_view suffix) { return name.ends_with(suffix); });
}

/// The format that the names hint at. Only for what no format recognised: its reader then says what is wrong there.
const Format* format_by_names(const Source& source) {
  std::vector<std::string> names = source.paths;
  if (names.size() == 1 && source.fs->status(names.front()).kind == FileKind::kFolder) {
    names = source.fs->list(names.front());
  }
  for (const Format& format : formats()) {
    if (std::ranges::any_of(names, [&](const std::string& name) { return has_suffix_of(format, name); }))
      return &format;
  }
  return nullptr;
}

void check_exists(const Source& source) {
  if (source.paths.empty()) throw Error(ErrorCode::kInvalidArgument, "no source was named");
  for (const std::string& path : source.paths) {
    const FileKind kind = source.fs->status(path).kind;
    if (kind == FileKind::kAbsent) {
      throw Error(ErrorCode::kNotFound, "no such file or folder").in_file(path).of_kind("missing_file");
    }
    if (kind == FileKind::kOther) {
      throw Error(ErrorCode::kNotFound, "is not a regular file").in_file(path);
    }
    if (kind == FileKind::kFolder && source.paths.size() > 1) {
      throw Error(ErrorCode::kInvalidArgument, "a folder is a checkpoint of its own and cannot stand beside others")
          .in_file(path);
    }
  }
}

/// The torch.save files of a source that no index joins, if there are several.
std::vector<std::string> loose_torch_files(const Source& source) {
  std::vector<std::string> files = source.paths;
  if (files.size() == 1 && source.fs->status(files.front()).kind == FileKind::kFolder) {
    files = source.fs->list(source.paths.front());
    std::erase_if(files, [](const std::string& name) { return !has_suffix_of(kTorchFormat, name); });
    for (std::string& name : files) name = join_path(source.paths.front(), name);
  }
  const auto is_torch = [&](const std::string& file) { return kTorchFormat.detect(Source{source.fs, {file}}); };
  if (files.size() < 2 || !std::ranges::all_of(files, is_torch)) files.clear();
  return files;
}

/// The names in a file; nothing if it cannot be read, which tells nothing about them.
std::optional<std::set<std::string>> names_in(FileSystem* fs, const std::string& file) {
  try {
    const auto reader = kTorchFormat.open(Source{fs, {file}}, OpenOptions{});
    std::set<std::string> names;
    for (const Tensor& tensor : reader->catalog().tensors) names.emplace(tensor.name);
    for (const Object& object : reader->catalog().objects) names.emplace(object.name);
    return names;
  } catch (const Error&) {
    return std::nullopt;
  }
}

/// Files that hold the same names are those of ranks; others are no checkpoint together.
void refuse_loose_torch_files(const Source& source) {
  const std::vector<std::string> files = loose_torch_files(source);
  if (files.empty()) return;
  const auto names = names_in(source.fs, files.front());
  for (const std::string& file : files) {
    const auto others = names_in(source.fs, file);
    if (!names || !others || *names == *others) continue;
    throw Error(ErrorCode::kCorruption, fmt::format("{} and {} hold different names", files.front(), file))
        .in_file(file)
        .because("files of ranks hold the same names, parts of one checkpoint have an index beside them");
  }
  throw Error(ErrorCode::kUnsupported, "this is a set of torch.save files, one per rank, which this build cannot read")
      .in_file(source.paths.front());
}

[[noreturn]] void throw_none(const Source& source) {
  throw Error(ErrorCode::kCorruption, fmt::format("{} is no checkpoint of a known format", shown(source)))
      .in_file(source.paths.front())
      .because(fmt::format("the content fits none of: {}", all_names()));
}

[[noreturn]] void throw_several(const Source& source, std::span<const Format* const> fitting) {
  const std::vector<std::string_view> names = names_of(fitting);
  throw Error(ErrorCode::kCorruption,
              fmt::format("{} fits {} formats: {}", shown(source), names.size(), fmt::join(names, " and ")))
      .in_file(source.paths.front())
      .because("the folder holds the files of both")
      .hint(fmt::format("say which one to read: --from {}", fmt::join(names, " or --from ")));
}

}  // namespace

std::span<const Format> formats() {
  static const std::array<Format, 3> all{kSafetensorsFormat, kTorchFormat, kDcpFormat};
  return all;
}

FormatTraits traits_of(const Format& format, const WriteOptions& options) {
  return format.traits_for == nullptr ? format.traits : format.traits_for(options);
}

const Format& format_named(std::string_view name) {
  const std::span<const Format> all = formats();
  const auto found = std::ranges::find(all, name, [](const Format& format) { return format.traits.name; });
  if (found != all.end()) return *found;
  if (std::ranges::find(kLaterFormats, name) != kLaterFormats.end()) {
    throw Error(ErrorCode::kUnsupported, fmt::format("this build does not have the format '{}'", name))
        .hint(fmt::format("formats here: {}", all_names()));
  }
  const auto nearest =
      std::ranges::min_element(all, {}, [&](const Format& format) { return distance(name, format.traits.name); });
  const std::string_view guess = nearest->traits.name;
  Error error(ErrorCode::kInvalidArgument, fmt::format("unknown format '{}'", name));
  if (distance(name, guess) * 2 <= guess.size()) {
    error.hint(fmt::format("did you mean {}?", guess));
  } else {
    error.hint(fmt::format("formats are: {}", all_names()));
  }
  throw Error(error);
}

const Format& detect_format(const Source& source) {
  check_exists(source);
  if (auto error = foreign_look_alike(source)) throw Error(*error);
  std::vector<const Format*> fitting;
  for (const Format& format : formats()) {
    if (format.detect(source)) fitting.push_back(&format);
  }
  if (fitting.size() > 1) throw_several(source, fitting);
  if (fitting.size() == 1) return *fitting.front();
  if (source.paths.size() > 1) refuse_loose_torch_files(source);
  if (auto error = foreign_kind(source)) throw Error(*error);
  refuse_loose_torch_files(source);
  if (const Format* format = format_by_names(source)) return *format;
  throw_none(source);
}

}  // namespace shard
