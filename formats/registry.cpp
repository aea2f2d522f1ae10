#include "formats/registry.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <mutex>

#include "formats/dcp/format.h"
#include "formats/dcp_hf/format.h"
#include "formats/foreign.h"
#include "formats/plugins.h"
#include "formats/safetensors/format.h"
#include "formats/torch/format.h"
#include "formats/torch_ranks/format.h"
#include "libshard/core/error.h"
#include "libshard/core/nearest.h"
#include "libshard/io/paths.h"

namespace shard {

namespace {

/// What is registered. A function's static object: no format depends on the order in which objects are initialised.
class Registry {
 public:
  static Registry& instance() {
    static Registry registry;
    return registry;
  }

  std::vector<const Format*> all() const {
    const std::scoped_lock lock(mutex_);
    return formats_;
  }

  void add(const Format& format) {
    const std::scoped_lock lock(mutex_);
    for (const Format* each : formats_) {
      if (each == &format) return;
      if (each->traits.name == format.traits.name) refuse_name(format.traits.name);
    }
    formats_.push_back(&format);
  }

 private:
  [[noreturn]] static void refuse_name(std::string_view name) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("cannot add the format '{}': another one has its name", name));
  }

  mutable std::mutex mutex_;
  std::vector<const Format*> formats_{&kSafetensorsFormat, &kTorchFormat, &kDcpFormat, &kDcpHfFormat,
                                      &kTorchRanksFormat};
};

std::vector<std::string_view> names_of(std::span<const Format* const> all) {
  std::vector<std::string_view> names;
  for (const Format* format : all) names.push_back(format->traits.name);
  return names;
}

std::string all_names() { return fmt::format("{}", fmt::join(format_names(), ", ")); }

const Format* find_format(std::string_view name) {
  const std::vector<const Format*> all = formats();
  const auto found = std::ranges::find(all, name, [](const Format* format) { return format->traits.name; });
  return found == all.end() ? nullptr : *found;
}

/// The format of that name once its plug-in is loaded.
const Format& load_known(const KnownFormat& known) {
  Error absent(ErrorCode::kUnsupported, fmt::format("this build does not have the format '{}'", known.name));
  absent.hint(fmt::format("formats here: {}", all_names()));
  if (known.library.empty()) throw Error(absent);
  if (!is_installed(known)) throw Error(absent.because(fmt::format("the plug-in {} is not installed", known.library)));
  load_plugin_of(known);
  if (const Format* format = find_format(known.name); format != nullptr) return *format;
  throw Error(absent.because(fmt::format("the plug-in {} does not bring it", known.library)));
}

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
  for (const Format* format : formats()) {
    if (is_format(*format, kTorchFormat) && is_folder(source)) continue;  // Its folders have names of their own.
    if (std::ranges::any_of(names, [&](const std::string& name) { return has_suffix_of(*format, name); }))
      return format;
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

std::vector<const Format*> fitting_formats(const Source& source) {
  std::vector<const Format*> fitting = formats();
  std::erase_if(fitting, [&](const Format* format) { return !format->detect(source); });
  prefer_ranks(fitting);
  return fitting;
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
  Error error(ErrorCode::kCorruption, fmt::format("{} is not a checkpoint in any known format", shown(source)));
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

std::vector<const Format*> formats() { return Registry::instance().all(); }

std::vector<std::string> format_names() {
  std::vector<std::string> names;
  for (const Format* format : formats()) names.emplace_back(format->traits.name);
  for (const KnownFormat& known : known_formats()) {
    if (find_format(known.name) == nullptr && is_installed(known)) names.emplace_back(known.name);
  }
  return names;
}

void register_format(const Format& format) { Registry::instance().add(format); }

FormatTraits traits_of(const Format& format, const WriteOptions& options) {
  return format.traits_for == nullptr ? format.traits : format.traits_for(options);
}

const Format& format_named(std::string_view name) {
  if (const Format* format = find_format(name); format != nullptr) return *format;
  const auto known = std::ranges::find(known_formats(), name, &KnownFormat::name);
  if (known != known_formats().end()) return load_known(*known);
  load_installed_plugins();  // One may bring more than is known of it here.
  if (const Format* format = find_format(name); format != nullptr) return *format;
  const std::vector<std::string> names = format_names();
  const std::string guess = nearest(name, std::vector<std::string_view>(names.begin(), names.end()));
  throw Error(ErrorCode::kInvalidArgument, fmt::format("unknown format '{}'", name))
      .hint(guess.empty() ? fmt::format("formats are: {}", all_names()) : fmt::format("did you mean {}?", guess));
}

std::string_view format_of_suffix(std::string_view path) {
  const std::string name = base_name(path);
  const auto is_suffix = [&](std::string_view suffix) { return path.ends_with(suffix) && name != suffix; };
  for (const Format* format : formats()) {
    if (std::ranges::any_of(format->suffixes, is_suffix)) return format->traits.name;
  }
  const auto known = std::ranges::find_if(
      known_formats(), [&](const KnownFormat& each) { return std::ranges::any_of(each.suffixes, is_suffix); });
  return known == known_formats().end() ? std::string_view() : known->name;
}

const Format& detect_format(const Source& source) {
  check_exists(source);
  if (auto error = foreign_look_alike(source)) throw Error(*error);
  std::vector<const Format*> fitting = fitting_formats(source);
  if (fitting.empty()) {
    load_installed_plugins();
    fitting = fitting_formats(source);
  }
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
