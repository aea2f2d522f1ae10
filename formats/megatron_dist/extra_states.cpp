#include "formats/megatron_dist/extra_states.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <span>
#include <string_view>

#include "libshard/core/box.h"
#include "libshard/core/error.h"
#include "libshard/core/index_walk.h"

namespace shard::megatron_dist {
namespace {

bool remove_prefix(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

/// Whether a name, without wrappers before it (`module.`, `model.`), is of a transformer layer.
bool is_in_layers(std::string_view name) {
  while (remove_prefix(name, "module.") || remove_prefix(name, "model.")) {
  }
  return name.starts_with("decoder.layers.") || name.starts_with("mtp.layers.");
}

/// The linear layer of which a tensor is the weight, or the first of two halves with keys of their own; else empty.
std::string_view linear_module(std::string_view name) {
  const std::size_t dot = name.rfind('.');
  if (dot == std::string_view::npos || !is_in_layers(name)) return {};
  const std::string_view module = name.substr(0, dot), leaf = name.substr(dot + 1);
  if (leaf != "weight" && leaf != "weight_w") return {};
  const std::string_view last = module.substr(module.rfind('.') + 1);
  return last.starts_with("linear_") || last == "eh_proj" ? module : std::string_view();
}

void append_names(std::string_view module, std::span<const std::int64_t> stacked, std::vector<std::string>& names) {
  const std::vector<std::int64_t> one{1};
  if (stacked.empty()) stacked = one;
  std::vector<std::int64_t> offset(stacked.size());
  do {
    if (names.size() == kMaxExtraStates) {
      throw Error(ErrorCode::kUnsupported,
                  fmt::format("the tensors are weights of more than {} linear layers", kMaxExtraStates))
          .because("Megatron-core saves an object (_extra_state) for each of them");
    }
    names.push_back(
        fmt::format("{}._extra_state/shard_{}_{}", module, fmt::join(offset, "."), fmt::join(stacked, ".")));
  } while (next_index<std::int64_t>(offset, stacked) >= 0);
}

}  // namespace

std::vector<std::string> extra_state_names(const Catalog& catalog) {
  std::vector<std::string> names;
  for (const Tensor& tensor : catalog.tensors) {
    const std::string_view module = linear_module(tensor.name);
    if (module.empty() || tensor.shape.size() < 2 || is_empty(tensor.shape)) continue;
    append_names(module, tensor.shape.span().first(static_cast<std::size_t>(tensor.shape.size()) - 2), names);
  }
  return names;
}

}  // namespace shard::megatron_dist
