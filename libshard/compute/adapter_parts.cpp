#include "libshard/compute/adapter_parts.h"

#include <fmt/format.h>

#include <algorithm>

#include "libshard/core/box.h"
#include "libshard/core/checked.h"
#include "libshard/core/hash_table.h"

namespace shard {

namespace {

constexpr std::string_view kWrapper = "base_model.model.", kNested = ".base_layer", kMark = ".lora_";
constexpr int kMostNested = 16;
/// Factors are in memory. Larger ones than this must be in proportion to the files of their adapter.
constexpr std::int64_t kMostFreeBytes = 64 << 20, kMostPerFileByte = 16;

/// Sorts the tensors of an adapter into pairs.
class PartsFinder {
 public:
  explicit PartsFinder(const Adapter& adapter) : adapter_(adapter), catalog_(adapter.reader->catalog()) {
    for (const File& file : catalog_.files) file_bytes_ += static_cast<double>(file.bytes);
  }

  AdapterParts find() {
    for (std::uint32_t i = 0; i < catalog_.tensors.size(); ++i) take(i);
    for (const AdapterPair& pair : parts_.pairs) check(pair);
    return std::move(parts_);
  }

 private:
  void take(std::uint32_t tensor) {
    std::string_view name = catalog_.tensors[tensor].name;
    if (name.starts_with(kWrapper)) name.remove_prefix(kWrapper.size());
    const std::size_t at = name.rfind(kMark);
    if (at == std::string_view::npos) {
      if (name.find("trainable_tokens") != std::string_view::npos) throw unknown(tensor);
      take_saved(name, tensor);
      return;
    }
    AdapterPair& pair = pair_of(name.substr(0, at), tensor);
    std::string_view kind = name.substr(at + 1);
    if (kind.ends_with(".weight")) kind.remove_suffix(std::string_view(".weight").size());
    pair.is_embedding = pair.is_embedding || kind.starts_with("lora_embedding_");
    std::uint32_t* const place = kind == "lora_A" || kind == "lora_embedding_A"   ? &pair.a
                                 : kind == "lora_B" || kind == "lora_embedding_B" ? &pair.b
                                 : kind == "lora_magnitude_vector"                ? &pair.magnitude
                                                                                  : nullptr;
    if (place == nullptr || *place != kNoIndex) throw unknown(tensor);
    *place = tensor;
  }

  void take_saved(std::string_view name, std::uint32_t tensor) {
    const std::size_t end = std::min(name.rfind('.'), name.size());
    std::string_view module = name.substr(0, end);
    while (module.ends_with(kNested)) module.remove_suffix(kNested.size());
    const bool is_trained = adapter_.config.has_biases && name.ends_with(".bias");
    const bool is_base = module.size() < end && !is_trained;
    refuse_attention(module, tensor);
    parts_.saved.push_back({std::string(module).append(name.substr(end)), tensor, is_base});
  }

  /// PEFT's adapters for nn.MultiheadAttention wrap its output projection inside the module of the input projections.
  void refuse_attention(std::string_view module, std::uint32_t tensor) const {
    if (module.find(std::string(kNested) + ".") == std::string_view::npos) return;
    throw of_adapter(ErrorCode::kUnsupported, adapter_, catalog_.tensors[tensor].name, "is for nn.MultiheadAttention");
  }

  AdapterPair& pair_of(std::string_view module, std::uint32_t tensor) {
    const auto [at, is_new] = by_module_.try_emplace(module, parts_.pairs.size());
    if (!is_new) return parts_.pairs[at];
    AdapterPair& pair = parts_.pairs.emplace_back();
    while (module.ends_with(kNested)) {
      module.remove_suffix(kNested.size());
      ++pair.depth;
    }
    refuse_attention(module, tensor);
    pair.module = module;
    return pair;
  }

  Error unknown(std::uint32_t tensor) const {
    return of_adapter(ErrorCode::kUnsupported, adapter_, catalog_.tensors[tensor].name, "has an unknown form");
  }

  /// Whether a factor is a matrix, or one of a convolution: A is [rank, in, kernel...], B is [out, rank, 1...].
  bool has_form(const AdapterPair& pair, const Tensor& factor) const {
    if (factor.shape.size() == 2) return true;
    const Dims a = catalog_.tensors[pair.a].shape, b = catalog_.tensors[pair.b].shape;
    const auto is_one = [](std::int64_t size) { return size == 1; };
    return a.size() > 2 && a.size() == b.size() && a[0] == b[1] && !pair.is_embedding &&
           std::ranges::all_of(b.span().subspan(2), is_one);
  }

  /// Whether a pair is for a convolution whose B has only the part of the rank that belongs to one group.
  bool has_groups(const AdapterPair& pair) const {
    const Dims a = catalog_.tensors[pair.a].shape, b = catalog_.tensors[pair.b].shape;
    return a.size() > 2 && a.size() == b.size() && b[1] > 0 && b[1] < a[0] && a[0] % b[1] == 0;
  }

  void check(const AdapterPair& pair) const {
    for (const std::uint32_t tensor : {pair.a, pair.b, pair.magnitude}) {
      if (tensor == kNoIndex) continue;
      const Tensor& at = catalog_.tensors[tensor];
      if (pair.a == kNoIndex || pair.b == kNoIndex) {
        throw of_adapter(ErrorCode::kCorruption, adapter_, at.name, "is half a pair: the other tensor is missing");
      }
      if (!is_float(at.dtype) || !is_castable(at.dtype)) {
        throw of_adapter(ErrorCode::kUnsupported, adapter_, at.name, "has an unknown dtype")
            .found(dtype_name(at.dtype));
      }
      check_size(at);
      if (tensor == pair.magnitude) continue;
      if (!has_form(pair, at)) {
        throw of_adapter(
            ErrorCode::kUnsupported, adapter_, at.name,
            has_groups(pair) ? "is for a convolution with groups, which PEFT does not merge either" : "is not a matrix")
            .found(to_string(at.shape));
      }
      if (checked_numel(at.shape) == 0) throw of_adapter(ErrorCode::kCorruption, adapter_, at.name, "has no elements");
    }
    if (pair.depth > kMostNested) {
      throw of_adapter(ErrorCode::kUnsupported, adapter_, catalog_.tensors[pair.a].name, "is nested too deeply");
    }
    if (adapter_.config.is_dora == (pair.magnitude != kNoIndex)) return;
    throw of_adapter(ErrorCode::kCorruption, adapter_, catalog_.tensors[pair.a].name,
                     adapter_.config.is_dora ? "has no lora_magnitude_vector, but use_dora is set"
                                             : "has a lora_magnitude_vector, but use_dora is not set");
  }

  void check_size(const Tensor& factor) const {
    const std::int64_t bytes = checked_bytes(checked_numel(factor.shape), DType::kFloat32);
    if (bytes <= kMostFreeBytes || static_cast<double>(bytes) <= static_cast<double>(kMostPerFileByte) * file_bytes_)
      return;
    throw of_adapter(ErrorCode::kCorruption, adapter_, factor.name, "is out of proportion to the adapter's files")
        .found(to_string(factor.shape));
  }

  const Adapter& adapter_;
  const Catalog& catalog_;
  double file_bytes_ = 0;
  HashMap<std::string, std::size_t> by_module_;
  AdapterParts parts_;
};

}  // namespace

AdapterParts find_parts(const Adapter& adapter) { return PartsFinder(adapter).find(); }

Error of_adapter(ErrorCode code, const Adapter& adapter, std::string_view tensor, std::string_view what) {
  return Error(code, fmt::format("cannot merge {}: '{}' {}", adapter.label, tensor, what))
      .of_tensor(tensor)
      .of_kind(FindingKind::kShapeMismatch);
}

}  // namespace shard
