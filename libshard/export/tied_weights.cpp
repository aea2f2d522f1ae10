#include "libshard/export/tied_weights.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace shard {

namespace {

constexpr std::array<std::string_view, 2> kHeads{"lm_head.weight", "embed_out.weight"};
constexpr std::array<std::string_view, 6> kEmbeddings{"embed_tokens.weight", "wte.weight",
                                                      "embed_in.weight",     "tok_embeddings.weight",
                                                      "shared.weight",       "word_embeddings.weight"};

bool is_called(std::string_view name, std::string_view end) {
  return name.ends_with(end) && (name.size() == end.size() || name[name.size() - end.size() - 1] == '.');
}

template <class Ends>
std::optional<std::size_t> find_called(std::span<const SelectedTensor> tensors, const Ends& ends) {
  for (const std::string_view end : ends) {
    const auto found = std::ranges::find_if(tensors, [&](const auto& each) { return is_called(each.name, end); });
    if (found != tensors.end()) return static_cast<std::size_t>(found - tensors.begin());
  }
  return std::nullopt;
}

}  // namespace

std::optional<TiedPair> find_tied(std::span<const SelectedTensor> tensors) {
  const auto head = find_called(tensors, kHeads), embedding = find_called(tensors, kEmbeddings);
  if (!head || !embedding) return std::nullopt;
  return TiedPair{*head, *embedding};
}

}  // namespace shard
