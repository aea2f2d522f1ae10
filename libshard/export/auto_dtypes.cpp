#include "libshard/export/auto_dtypes.h"

#include <string_view>

#include "libshard/core/checked.h"

namespace shard {

namespace {

constexpr std::string_view kAlwaysWide = "e_score_correction_bias";

bool is_wider(DType dtype, DType wanted) {
  return is_plain_float(dtype) && element_bytes(dtype) > element_bytes(wanted);
}

/// Whether most of a checkpoint has the dtype `wanted`, by tensors or by elements, so that wider tensors are
/// exceptions.
bool mostly_has(const Catalog& catalog, const QuantizedPart& quantized, DType wanted) {
  std::int64_t equal = 0, wider = 0;
  double equal_elements = 0, wider_elements = 0;
  for (std::uint32_t i = 0; i < catalog.tensors.size(); ++i) {
    const Tensor& tensor = catalog.tensors[i];
    if (!quantized.is_plain(i)) continue;
    const auto elements = static_cast<double>(checked_numel(tensor.shape));
    if (tensor.dtype == wanted) ++equal, equal_elements += elements;
    if (is_wider(tensor.dtype, wanted)) ++wider, wider_elements += elements;
  }
  return equal > wider || equal_elements > wider_elements;
}

}  // namespace

std::vector<DType> auto_dtypes(std::span<const SelectedTensor> model, const Catalog& source,
                               const QuantizedPart& quantized, const Catalog* reference, DType wanted) {
  const bool heeds_source = mostly_has(source, quantized, wanted);
  const bool heeds_reference = reference != nullptr && mostly_has(*reference, find_quantized(*reference), wanted);
  std::vector<DType> dtypes;
  dtypes.reserve(model.size());
  for (const SelectedTensor& each : model) {
    const Tensor* const known = heeds_reference ? reference->find(each.name) : nullptr;
    if (!is_plain_float(each.dtype) || !quantized.is_plain(each.source)) {
      dtypes.push_back(each.dtype);
    } else if (!is_wider(each.dtype, wanted)) {
      dtypes.push_back(wanted);
    } else if (known != nullptr && is_wider(known->dtype, wanted)) {
      dtypes.push_back(element_bytes(known->dtype) < element_bytes(each.dtype) ? known->dtype : each.dtype);
    } else if (each.name.ends_with(kAlwaysWide)) {
      dtypes.push_back(DType::kFloat32);
    } else {
      dtypes.push_back(known == nullptr && heeds_source ? each.dtype : wanted);
    }
  }
  return dtypes;
}

}  // namespace shard
