#include "libshard/compute/unknown_codes.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <string>
#include <string_view>

#include "libshard/core/checked.h"

namespace shard {

namespace {

using Role = QuantizedRole;

Error of_unknown_form(std::string_view tensor, const std::string& statement) {
  return Error(ErrorCode::kUnsupported, fmt::format("cannot dequantize '{}': its form is unknown", tensor))
      .of_tensor(tensor)
      .because(statement);
}

}  // namespace

bool is_number_of_codes(Role role) {
  return role == Role::kScale || role == Role::kSecondScale || role == Role::kZeroPoint;
}

bool is_stated_plain(const Catalog& catalog, const QuantizedPart& part, const QuantizedModule& module,
                     const StatedSchemes& stated) {
  if (!module.has_weight || module.has_scales) return false;
  const auto is_integers = [&](const QuantizedMember& member) {
    return member.role != Role::kWeight || is_integer(catalog.tensors[member.tensor].dtype);
  };
  return std::ranges::all_of(part.members_of(module), is_integers) && stated.ignores(module.name);
}

std::string unknown_form_of_all(const QuantizedPart& part, const StatedSchemes& stated) {
  const auto is_complete = [](const QuantizedModule& module) { return module.has_weight && module.has_scales; };
  return std::ranges::any_of(part.modules, is_complete) ? std::string() : stated.unknown_form();
}

Error incomplete_module(const Catalog& catalog, const QuantizedPart& part, const QuantizedModule& module,
                        const std::string& unknown_form) {
  const std::span<const QuantizedMember> members = part.members_of(module);
  const auto is_meant = [&](const QuantizedMember& member) {
    return module.has_weight ? member.role == Role::kWeight : is_number_of_codes(member.role);
  };
  const auto meant = std::ranges::find_if(members, is_meant);
  const std::string_view tensor = catalog.tensors[(meant == members.end() ? members.begin() : meant)->tensor].name;
  if (!unknown_form.empty()) return of_unknown_form(tensor, unknown_form);
  return Error(ErrorCode::kCorruption,
               module.has_weight ? fmt::format("cannot dequantize '{}': its scales are missing", tensor)
                                 : fmt::format("cannot dequantize '{}': the weight of these scales is missing", tensor))
      .of_tensor(tensor)
      .of_kind(FindingKind::kGap);
}

void refuse_unknown_codes(const Catalog& catalog, const StatedSchemes& stated) {
  const std::string statement = stated.unknown_form();
  const auto is_code = [&](const Tensor& tensor) {
    const bool is_bitmask = tensor.name.ends_with(".bitmask") && tensor.shape.size() >= 2;
    return is_integer(tensor.dtype) && (is_bitmask || (!statement.empty() && checked_numel(tensor.shape) > 1));
  };
  const auto codes = std::ranges::find_if(catalog.tensors, is_code);
  if (codes == catalog.tensors.end()) return;
  throw of_unknown_form(codes->name, statement.empty() ? "its weights are sparse" : statement);
}

bool has_tiles_of_comfy(const Catalog& catalog) {
  const auto found = catalog.metadata.find("_quantization_metadata");
  const auto has = [&](std::string_view form) { return found->second.find(form) != std::string::npos; };
  return found != catalog.metadata.end() && (has("\"nvfp4\"") || has("\"mxfp8\""));
}

}  // namespace shard
