#include "formats/registry.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "formats/dcp/format.h"
#include "formats/dcp_hf/format.h"
#include "formats/foreign.h"
#include "formats/safetensors/format.h"
#include "formats/torch/format.h"
#include "formats/torch_ranks/format.h"
#include "libshard/core/error.h"
#include "libshard/core/nearest.h"
#include "libshard/io/paths.h"

namespace shard {

namespace {

/// Names that mean something, but not in this build.
constexpr std::array<std::string_view, 7> kLaterFormats{
    "hdf5", "megatron", "megatron-dist", "deepspeed", "deepspeed-universal", "vllm", "llama",
};

std::vector<std::string_view> names_of(std::span<const Format* const> all) {
  std::vector<std::string_view> names;
  for (const Format* format : all) names.push_back(format->traits.name);
  return names;
}

std::vector<std::string_view> all_format_names() {
  std::vector<const Format*> all;
  for (const Format& format : formats()) all.push_back(&format);
  return names_of(all);
}

std::string all_names() { return fmt::format("{}", fmt::join(all_format_names(), ", ")); }

std::string shown(const Source& source) {
  return source.paths.size() == 1 ? source.paths.front() : fmt::format("{} files", source.paths.size());
}

bool has_suffix_of(const Format& format, std::string_view name) {
  return std::ranges::any_of(format.suffixes, [&](std::string_view suffix) { return name.ends_with(suffix); });
}

bool is_format(const Format& a, const Format& b) { return a.traits.name == b.traits.name; }

bool is_folder(const Source& source) {
  return source.paths.size() == 1 && source.store->status(source.paths.front()).kind == FileKind::kFolder;
}

/// The format that the names hint at. Only for what no format recognised: its reader then says what is wrong there.
const Format* format_by_names(const Source& source) {
  const std::vector<std::string> names = is_folder(source) ? source.store->list(source.paths.front()) : source.paths;
  for (const Format& format : formats()) {
    if (is_format(format, kTorchFormat) && is_folder(source)) continue;  // Its folders have names of their own.
    if (std::ranges::any_of(names, [&](const std::string& name) { return has_suffix_of(format, name); }))
      return &format;
  }
  return nullptr;
}

void check_exists(const Source& source) {
  if (source.paths.empty()) throw Error(ErrorCode::kInvalidArgument, "no source was named");
  for (const std::string& path : source.paths) {
    const FileKind kind = source.store->status(path).kind;
    if (kind == FileKind::kAbsent) {
      throw Error(ErrorCode::kNotFound, "no such file or folder").in_file(path).of_kind(FindingKind::kMissingFile);
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

/// A torch.save file in which sharded tensors lie is that of a rank; it is one of torch too, which cannot join them.
void prefer_ranks(std::vector<const Format*>& fitting) {
  const auto is_ranks = [](const Format* format) { return is_format(*format, kTorchRanksFormat); };
  if (std::ranges::none_of(fitting, is_ranks)) return;
  std::erase_if(fitting, [](const Format* format) { return is_format(*format, kTorchFormat); });
}

/// A file of a folder that is a checkpoint by itself, or empty: PEFT's adapter_model.bin has no index.
std::string file_to_name(const Source& source) {
  if (!is_folder(source)) return {};
  for (const std::string& name : source.store->list(source.paths.front())) {
    const Source file{source.store, {join_path(source.paths.front(), name)}};
    const bool is_file =
        has_suffix_of(kTorchFormat, name) && file.store->status(file.paths.front()).kind == FileKind::kFile;
    if (is_file && kTorchFormat.detect(file)) return file.paths.front();
  }
  return {};
}

[[noreturn]] void throw_none(const Source& source) {
  Error error(ErrorCode::kCorruption, fmt::format("{} is no checkpoint of a known format", shown(source)));
  error.in_file(source.paths.front()).because(fmt::format("the content fits none of: {}", all_names()));
  const std::string file = file_to_name(source);
  throw file.empty() ? error : error.hint(fmt::format("name the file itself: {}", file));
}

[[noreturn]] void throw_several(const Source& source, std::span<const Format* const> fitting) {
  const std::vector<std::string_view> names = names_of(fitting);
  throw Error(ErrorCode::kCorruption,
              fmt::format("{} fits {} formats: {}", shown(source), names.size(), fmt::join(names, ", ")))
      .in_file(source.paths.front())
      .because(fmt::format("the folder holds the files of {}", names.size() == 2 ? "both" : "all of them"))
      .hint(fmt::format("say which one to read: --from {}", fmt::join(names, " or --from ")));
}

}  // namespace

std::span<const Format> formats() {
  static const std::array<Format, 5> all{kSafetensorsFormat, kTorchFormat, kDcpFormat, kDcpHfFormat, kTorchRanksFormat};
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
  const std::vector<std::string_view> names = all_format_names();
  const std::string guess = nearest(name, names);
  Error error(ErrorCode::kInvalidArgument, fmt::format("unknown format '{}'", name));
  error.hint(guess.empty() ? fmt::format("formats are: {}", fmt::join(names, ", "))
                           : fmt::format("did you mean {}?", guess));
  throw Error(error);
}

const Format& detect_format(const Source& source) {
  check_exists(source);
  if (auto error = foreign_look_alike(source)) throw Error(*error);
  std::vector<const Format*> fitting;
  for (const Format& format : formats()) {
    if (format.detect(source)) fitting.push_back(&format);
  }
  prefer_ranks(fitting);
  if (fitting.size() > 1) throw_several(source, fitting);
  // A folder of torch.save files may be that of a framework.
  const bool is_sure =
      fitting.size() == 1 && (source.paths.size() > 1 || !is_format(*fitting.front(), kTorchRanksFormat));
  if (is_sure) return *fitting.front();
  if (auto error = foreign_kind(source)) throw Error(*error);
  if (fitting.size() == 1) return *fitting.front();
  if (const Format* format = format_by_names(source)) return *format;
  throw_none(source);
}

}  // namespace shard
