#include "libshard/export/adapter.h"

#include <fmt/format.h>

#include <array>
#include <set>

#include "libshard/core/contains.h"
#include "libshard/core/split.h"

namespace shard {

namespace {

constexpr std::string_view kWrapper = "base_model.model.", kLora = ".lora_", kSaved = "modules_to_save",
                           kOriginal = "original_module", kBaseLayer = "base_layer",
                           kMagnitude = "lora_magnitude_vector", kTokens = "trainable_tokens_delta";

std::string joined_parts(const std::vector<std::string_view>& parts) {
  std::string name;
  for (const std::string_view part : parts) name.append(name.empty() ? "" : ".").append(part);
  return name;
}

bool has_part(std::string_view name, std::string_view part) { return contains(split(name, '.'), part); }

/// The part of a name after PEFT's wrapper. The whole name if it is not in a wrapper.
std::string_view inside_wrapper(std::string_view name) {
  const std::size_t at = name.find(kWrapper);
  const bool is_part = at == 0 || (at != std::string_view::npos && name[at - 1] == '.');
  return is_part ? name.substr(at + kWrapper.size()) : name;
}

/// Removes the adapter's own name from the parts after number `at`. \returns it; empty if there is none.
std::string take_adapter_name(std::vector<std::string_view>& parts, std::size_t at) {
  const auto next = parts.begin() + static_cast<std::ptrdiff_t>(at) + 1;
  if (next == parts.end() || *next == "weight" || *next == "bias") return {};
  std::string name(*next);
  parts.erase(next);
  return name;
}

/// Changes the parts of a name to those in PEFT's files. \returns the adapter's own name; empty if there is none.
std::string rename_parts(std::vector<std::string_view>& parts) {
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (parts[i] == kMagnitude) {  // A separate tensor in the files, although it is a module's weight in memory.
      std::string name = take_adapter_name(parts, i);
      parts.resize(i + 1);
      return name;
    }
    if (parts[i].starts_with(kLora.substr(1)) || parts[i] == kTokens) return take_adapter_name(parts, i);
    if (parts[i] != kSaved) continue;
    std::string name = take_adapter_name(parts, i);
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(i));
    return name;
  }
  return {};
}

}  // namespace

bool is_lora(std::string_view name) {
  return name.starts_with(kLora.substr(1)) || name.find(kLora) != std::string_view::npos;
}

bool is_lora_of_other_tool(std::string_view name) {
  constexpr std::array<std::string_view, 9> kEnds{".lora_down.weight", ".lora_up.weight",   ".lora.down.weight",
                                                  ".lora.up.weight",   "_lora.down.weight", "_lora.up.weight",
                                                  ".hada_w1_a",        ".lokr_w1",          ".lokr_w1_a"};
  return ends_in_any(name, kEnds);
}

Error refused_names_of_other_tool(std::string_view name) {
  return Error(ErrorCode::kUnsupported, fmt::format("the adapter's tensor '{}' does not have a name of PEFT", name))
      .because("adapters of Kohya's scripts, LyCORIS and old versions of diffusers are not supported")
      .hint("convert or merge it with the library that trained it");
}

std::string base_weight_beside(const std::vector<ModelTensor>& tensors) {
  std::set<std::string_view> adapted, names;
  for (const ModelTensor& each : tensors) {
    const std::string_view name = each.name;
    is_lora(name) ? adapted.insert(name.substr(0, name.find(kLora))) : names.insert(name);
  }
  std::string first;
  std::size_t with_base = 0;
  for (const std::string_view module : adapted) {
    for (const char* const end : {".base_layer.weight", ".weight"}) {
      const auto found = names.find(std::string(module) + end);
      if (found == names.end()) continue;
      ++with_base;
      if (first.empty()) first = *found;
      break;
    }
  }
  return 2 * with_base > adapted.size() ? first : std::string();
}

std::vector<std::string> name_as_peft(std::vector<ModelTensor>& tensors) {
  std::erase_if(tensors, [](const ModelTensor& each) { return has_part(each.name, kOriginal); });
  std::set<std::string> adapters;
  for (ModelTensor& each : tensors) {
    const std::string cleaned(inside_wrapper(each.name));
    std::vector<std::string_view> parts = split(cleaned, '.');
    if (std::string adapter = rename_parts(parts); !adapter.empty()) adapters.insert(std::move(adapter));
    each.name = std::string(kWrapper) + joined_parts(parts);
  }
  return {adapters.begin(), adapters.end()};
}

std::string without_adapter(std::string_view name) {
  if (!name.starts_with(kWrapper)) return std::string(name);
  std::vector<std::string_view> parts = split(name.substr(kWrapper.size()), '.');
  std::erase(parts, kBaseLayer);
  return joined_parts(parts);
}

}  // namespace shard
