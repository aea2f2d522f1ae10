#include "libshard/export/tied_weights.h"

#include <algorithm>
#include <array>
#include <optional>

#include "libshard/core/contains.h"

namespace shard {

namespace {

/// The ends of names that transformers' models tie (`_tied_weights_keys` of their classes), and of the names that they
/// repeat, the most certain first.
struct TiedNames {
  std::string_view repeated;
  std::array<std::string_view, 6> originals;
};
constexpr std::array<TiedNames, 9> kTied{{
    {"lm_head.weight",
     {"embed_tokens.weight", "wte.weight", "embed_in.weight", "tok_embeddings.weight", "shared.weight",
      "word_embeddings.weight"}},
    {"embed_out.weight", {"embed_tokens.weight", "wte.weight", "embed_in.weight"}},
    {"proj_out.weight", {"decoder.embed_tokens.weight"}},
    {"encoder.embed_tokens.weight", {"shared.weight"}},
    {"decoder.embed_tokens.weight", {"shared.weight"}},
    {"predictions.decoder.weight", {"word_embeddings.weight"}},
    {"predictions.decoder.bias", {"predictions.bias"}},
    {"lm_head.decoder.weight", {"word_embeddings.weight"}},
    {"lm_head.decoder.bias", {"lm_head.bias"}},
}};

template <class Named>
std::optional<std::size_t> find_called(std::span<const Named> tensors, std::string_view end) {
  const auto found = std::ranges::find_if(tensors, [&](const auto& each) { return ends_with_part(each.name, end); });
  if (found == tensors.end()) return std::nullopt;
  return static_cast<std::size_t>(found - tensors.begin());
}

}  // namespace

std::vector<AbsentTie> absent_ties(const Catalog& catalog) {
  const std::span<const Tensor> tensors = catalog.tensors;
  std::vector<AbsentTie> ties;
  std::vector<std::string_view> stored_twice;
  for (const TiedNames& names : kTied) {
    const bool is_stored = find_called(tensors, names.repeated).has_value();
    for (const std::string_view end : names.originals) {
      const auto original = find_called(tensors, end);
      if (!original) continue;
      const std::string_view name = tensors[*original].name;
      is_stored ? stored_twice.push_back(name) : ties.push_back({names.repeated, end, name});
      break;
    }
  }
  std::erase_if(
      ties, [&](const AbsentTie& tie) { return std::ranges::find(stored_twice, tie.tensor) != stored_twice.end(); });
  return ties;
}

std::vector<TiedPair> find_tied(std::span<const SelectedTensor> tensors) {
  std::vector<TiedPair> pairs;
  for (const TiedNames& names : kTied) {
    const auto repeated = find_called(tensors, names.repeated);
    if (!repeated) continue;
    for (const std::string_view end : names.originals) {
      const auto original = find_called(tensors, end);
      if (!original) continue;
      pairs.push_back({*repeated, *original});
      break;
    }
  }
  for (TiedPair& pair : pairs) {  // The tensor that a head repeats may itself repeat a different one.
    const auto inner = std::ranges::find(pairs, pair.original, &TiedPair::repeated);
    if (inner != pairs.end()) pair.original = inner->original;
  }
  return pairs;
}

}  // namespace shard
