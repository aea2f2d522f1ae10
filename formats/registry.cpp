#include "formats/registry.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <mutex>
#include <optional>

#include "formats/dcp/format.h"
#include "formats/dcp_hf/format.h"
#include "formats/deepspeed/format.h"
#include "formats/megatron/format.h"
#include "formats/megatron_dist/format.h"
#include "formats/plugins.h"
#include "formats/safetensors/format.h"
#include "formats/torch/format.h"
#include "formats/torch_ranks/format.h"
#include "formats/vllm/format.h"
#include "libshard/core/contains.h"
#include "libshard/core/error.h"
#include "libshard/core/nearest.h"
#include "libshard/io/paths.h"

namespace shard {

namespace {

/// The registered formats. A static object inside a function, so that no format depends on the order of initialisation.
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

  /// Adding the same object again has no effect, so a plug-in may be loaded twice.
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
    throw Error(ErrorCode::kUnsupported, fmt::format("cannot add the format '{}': a format of this name exists", name));
  }

  mutable std::mutex mutex_;
  std::vector<const Format*> formats_{&kSafetensorsFormat,
                                      &kTorchFormat,
                                      &kDcpFormat,
                                      &kDcpHfFormat,
                                      &kTorchRanksFormat,
                                      &kDeepSpeedFormat,
                                      &kDeepSpeedUniversalFormat,
                                      &kMegatronFormat,
                                      &kMegatronDistFormat,
                                      &kVllmFormat};
};

std::string all_names() { return fmt::format("{}", fmt::join(format_names(), ", ")); }

const Format* find_format(std::string_view name) {
  const std::vector<const Format*> all = formats();
  const auto found = std::ranges::find(all, name, [](const Format* format) { return format->traits.name; });
  return found == all.end() ? nullptr : *found;
}

/// Loads the plug-in of a known format. \returns the format of that name.
const Format& load_known(const KnownFormat& known) {
  Error absent(ErrorCode::kUnsupported, fmt::format("this build does not have the format '{}'", known.name));
  absent.hint(fmt::format("formats here: {}", all_names()));
  if (!is_installed(known)) {
    throw Error(absent.because(fmt::format("the plug-in {} is not installed; building it needs the packages {}",
                                           known.library, known.built_with)));
  }
  load_plugin_of(known);
  if (const Format* format = find_format(known.name); format != nullptr) return *format;
  throw Error(absent.because(fmt::format("the plug-in {} does not bring it", known.library)));
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

bool has_option(std::span<const FormatOption> options, std::string_view name) {
  return contains(options, name, &FormatOption::name);
}

std::vector<FormatOption> format_options(std::span<const FormatOption> Format::*of) {
  std::vector<FormatOption> options;
  for (const Format* format : formats()) {
    for (const FormatOption& option : format->*of) {
      if (!has_option(options, option.name)) options.push_back(option);
    }
  }
  return options;
}

std::string_view choice(const FormatChoices& choices, const FormatOption& option) {
  const auto found = choices.find(option.name);
  return found == choices.end() ? option.words.front() : std::string_view(found->second);
}

const Format& loader_format(std::string_view suffix) {
  const std::vector<const Format*> all = formats();
  return **std::ranges::find(all, suffix, [](const Format* format) { return format->loader_suffix; });
}

const Format& map_format(MapContainer container) {
  const std::vector<const Format*> all = formats();
  return **std::ranges::find(all, std::optional(container), [](const Format* format) { return format->map_container; });
}

const Format& file_format_of(const Format& format) {
  return format.file_format.empty() ? format : format_named(format.file_format);
}

const Format* superseding_format(const Source& source, const Format& format) {
  const std::vector<const Format*> all = formats();
  const auto found = std::ranges::find_if(
      all, [&](const Format* each) { return contains(each->supersedes, format.traits.name) && each->detect(source); });
  return found == all.end() ? nullptr : *found;
}

std::unique_ptr<Writer> writer_of(const Format& format, const WriteOptions& options) {
  if (options.single_file && format.suffixes.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("cannot write {} to a single file: it needs a folder", format.traits.name))
        .suggest(Remedy::kNameFolder);
  }
  return format.make_writer(options);
}

const Format& format_named(std::string_view name) {
  if (const Format* format = find_format(name); format != nullptr) return *format;
  const auto known = std::ranges::find(known_formats(), name, &KnownFormat::name);
  if (known != known_formats().end()) return load_known(*known);
  load_installed_plugins();  // A plug-in may contain further formats that are not in this list.
  if (const Format* format = find_format(name); format != nullptr) return *format;
  const std::vector<std::string> names = format_names();
  const std::string guess = nearest(name, std::vector<std::string_view>(names.begin(), names.end()));
  throw Error(ErrorCode::kInvalidArgument, fmt::format("unknown format '{}'", name))
      .hint(guess.empty() ? fmt::format("formats are: {}", all_names()) : fmt::format("did you mean {}?", guess));
}

std::vector<std::string_view> known_suffixes() {
  std::vector<std::string_view> suffixes;
  const auto add = [&](std::span<const std::string_view> more) {
    for (const std::string_view each : more) {
      if (!contains(suffixes, each)) suffixes.push_back(each);
    }
  };
  for (const Format* format : formats()) add(format->suffixes);
  for (const KnownFormat& known : known_formats()) add(known.suffixes);
  return suffixes;
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

}  // namespace shard
