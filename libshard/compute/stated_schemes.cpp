#include "libshard/compute/stated_schemes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <concepts>
#include <iterator>
#include <span>
#include <vector>

#include "libshard/compute/block_grid.h"
#include "libshard/core/checked.h"

namespace shard {

namespace {

/// The forms that a word of a configuration allows.
struct AllowedForms {
  std::string_view word;
  std::uint32_t forms;  ///< See bits_of.
};

constexpr std::uint32_t bits_of(std::same_as<QuantizedForm> auto... forms) {
  return ((1U << static_cast<unsigned>(forms)) | ...);
}

/// Values of `quant_method`.
constexpr std::array kMethods{
    AllowedForms{"fp8", bits_of(QuantizedForm::kFloat8, QuantizedForm::kMxfp8, QuantizedForm::kFp4Exponents)},
    AllowedForms{"mxfp8", bits_of(QuantizedForm::kFloat8, QuantizedForm::kMxfp8)},
    AllowedForms{"mxfp4",
                 bits_of(QuantizedForm::kMxfp4Blocks, QuantizedForm::kMxfp4Packed, QuantizedForm::kFp4Exponents)},
    AllowedForms{"compressed-tensors",
                 bits_of(QuantizedForm::kFloat8, QuantizedForm::kMxfp8, QuantizedForm::kInt8,
                         QuantizedForm::kPackedInts, QuantizedForm::kNvfp4Packed, QuantizedForm::kMxfp4Packed)},
    AllowedForms{"gptq", bits_of(QuantizedForm::kGptq)},
    AllowedForms{"awq", bits_of(QuantizedForm::kAwq)},
    AllowedForms{"bitsandbytes", bits_of(QuantizedForm::kBitsandbytes4, QuantizedForm::kBitsandbytes8)},
};

/// Values of `format`, as compressed-tensors writes them.
constexpr std::array kFormats{
    AllowedForms{"pack-quantized", bits_of(QuantizedForm::kPackedInts)},
    AllowedForms{"nvfp4-pack-quantized", bits_of(QuantizedForm::kNvfp4Packed)},
    AllowedForms{"mxfp4-pack-quantized", bits_of(QuantizedForm::kMxfp4Packed)},
    AllowedForms{"mxfp8-quantized", bits_of(QuantizedForm::kMxfp8, QuantizedForm::kFloat8)},
    AllowedForms{"float-quantized", bits_of(QuantizedForm::kFloat8, QuantizedForm::kMxfp8)},
    AllowedForms{"int-quantized", bits_of(QuantizedForm::kInt8)},
    AllowedForms{"naive-quantized", bits_of(QuantizedForm::kFloat8, QuantizedForm::kMxfp8, QuantizedForm::kInt8)},
};

const AllowedForms* find_word(std::span<const AllowedForms> all, std::string_view word) {
  const auto found = std::ranges::find(all, word, &AllowedForms::word);
  return found == all.end() ? nullptr : &*found;
}

bool allows(const AllowedForms& allowed, QuantizedForm form) { return (allowed.forms & bits_of(form)) != 0; }

/// True if one of the formats allows the form, or one of them is unknown. "mixed-precision" is not in the list, because
/// the groups then have separate formats.
bool formats_allow(const std::set<std::string_view>& formats, QuantizedForm form) {
  if (formats.empty()) return true;
  return std::ranges::any_of(formats, [&](std::string_view word) {
    const AllowedForms* const known = find_word(kFormats, word);
    return known == nullptr || allows(*known, form);
  });
}

/// Whether the format is a word of that method for forms in the list above. Methods without formats know all words.
bool is_known_format(std::string_view method, std::string_view word) {
  if (method == "compressed-tensors") return word == "dense" || find_word(kFormats, word) != nullptr;
  return method != "gptq" || word == "gptq" || word == "gptq_v2";
}

}  // namespace

StatedSchemes::StatedSchemes(const QuantizationFacts& facts) : facts_(facts) {
  for (const QuantizationScheme& scheme : facts.schemes) {
    if (!scheme.format.empty() && scheme.format != "mixed-precision") formats_.insert(scheme.format);
    if (!scheme.strategy.empty()) strategies_.insert(scheme.strategy);
    if (scheme.bits) bits_.insert(*scheme.bits);
    if (scheme.group_size && *scheme.group_size > 0) sizes_.insert(*scheme.group_size);
  }
  constexpr std::string_view kPattern = "re:";
  for (const std::string& entry : facts.ignored) {
    if (!entry.starts_with(kPattern)) {
      names_.insert(std::string_view(entry));
      continue;
    }
    const auto compiled = patterns_.add(0, entry.substr(kPattern.size()));
    if (compiled == nullptr) break;  // All together are too large.
    has_patterns_ = has_patterns_ || compiled->ok();
  }
  has_patterns_ = has_patterns_ && patterns_.compile();
}

std::string StatedSchemes::unknown_form() const {
  if (facts_.method.empty()) return {};
  if (find_word(kMethods, facts_.method) == nullptr) {
    return fmt::format("the configuration's method is '{}'", facts_.method);
  }
  return unknown_format(facts_.method);
}

std::string StatedSchemes::unknown_format(std::string_view method) const {
  const auto is_unknown = [&](std::string_view word) { return !is_known_format(method, word); };
  const auto unknown = std::ranges::find_if(formats_, is_unknown);
  return unknown == formats_.end() ? std::string() : fmt::format("the configuration's format is '{}'", *unknown);
}

bool StatedSchemes::ignores(std::string_view module) const {
  if (names_.contains(module)) return true;
  if (!has_patterns_ || module.size() > MatchTime::kLongestName) return false;
  return time_(module, [&] {
    std::vector<std::size_t> numbers;
    return patterns_.append_matching(module, numbers) && !numbers.empty();
  });
}

std::string StatedSchemes::contradiction(const QuantizedModule& module, const ScaledCodes& codes) const {
  if (ignores(module.name)) return "the configuration lists it in 'ignore', so it must be plain";
  const AllowedForms* const method = find_word(kMethods, facts_.method);
  if (method != nullptr && !allows(*method, module.form)) {
    return fmt::format("the configuration's method is '{}'", facts_.method);
  }
  if (facts_.method == "compressed-tensors" && !formats_allow(formats_, module.form)) {
    return fmt::format("the configuration's format is '{}'", fmt::join(formats_, "' or '"));
  }
  if (facts_.method == "compressed-tensors") {
    if (std::string text = contradiction_of_strategy(codes); !text.empty()) return text;
  }
  const bool is_mx = facts_.method == "mxfp8" || (formats_.size() == 1 && formats_.contains("mxfp8-quantized"));
  if (is_mx && module.form == QuantizedForm::kFloat8 && codes.scales.grid != BlockGrid{1, 32}) {
    return "it has no exponent for each 32 codes of a row, and the configuration states MXFP8";
  }
  if (std::string text = contradiction_of_parts(module, codes); !text.empty()) return text;
  if (module.form == QuantizedForm::kFloat8 && facts_.method == "fp8") return contradiction_of_blocks(codes);
  const bool has_numbers = module.form == QuantizedForm::kPackedInts || module.form == QuantizedForm::kGptq ||
                           module.form == QuantizedForm::kAwq;
  return has_numbers ? contradiction_of_numbers(codes) : std::string();
}

int StatedSchemes::bits_of_groups(std::int64_t columns, std::int64_t group_columns) const {
  const auto groups_of = [&](std::int64_t size) { return ceil_div(columns, std::max<std::int64_t>(1, size)); };
  std::int64_t bits = 0;
  for (const QuantizationScheme& scheme : facts_.schemes) {
    const std::int64_t size = scheme.group_size.value_or(0);
    if (!scheme.bits || groups_of(size < 1 ? columns : size) != groups_of(group_columns)) continue;
    if (bits != 0 && bits != *scheme.bits) return 0;
    bits = *scheme.bits;
  }
  return bits >= 1 && bits <= 8 ? static_cast<int>(bits) : 0;
}

std::int64_t StatedSchemes::size_of_groups(int bits, std::int64_t all, std::int64_t groups) const {
  if (groups == 1) return std::max<std::int64_t>(1, all);
  const auto gives = [&](std::int64_t size) { return ceil_div(all, size) == groups; };
  std::set<std::int64_t> fitting;
  for (const QuantizationScheme& scheme : facts_.schemes) {
    const std::int64_t stated = scheme.group_size.value_or(0);
    if (scheme.allows_bits(bits) && stated >= 1 && gives(stated)) fitting.insert(stated);
  }
  // AutoRound and GPTQModel state only those numbers of a module that differ from the numbers of all.
  if (fitting.empty()) std::ranges::copy_if(sizes_, std::inserter(fitting, fitting.end()), gives);
  if (fitting.size() > 1) return 0;
  if (!fitting.empty()) return *fitting.begin();
  return all % groups == 0 ? all / groups : 0;
}

std::string StatedSchemes::contradiction_of_blocks(const ScaledCodes& codes) const {
  const BlockGrid& grid = codes.scales.grid;
  const Matrices all{1, codes.rows, codes.columns};
  const Matrices scales{1, ceil_div(codes.rows, grid.block_rows), ceil_div(codes.columns, grid.block_columns)};
  const QuantizationScheme* stated = nullptr;
  for (const QuantizationScheme& scheme : facts_.schemes) {
    if (scheme.block.size() != 2) continue;
    if (fits_grid(all, scales, {scheme.block[0], scheme.block[1]})) return {};
    stated = &scheme;
  }
  if (stated == nullptr) return {};
  return fmt::format("it has {} x {} scales, and the configuration states blocks of {} x {}", scales.rows,
                     scales.columns, stated->block[0], stated->block[1]);
}

std::string StatedSchemes::contradiction_of_strategy(const ScaledCodes& codes) const {
  const auto [block_rows, block_columns] = codes.scales.grid;
  const bool is_in_row = block_rows == 1, has_all_columns = block_columns >= codes.columns;
  const auto fits = [&](std::string_view strategy) {
    if (strategy == "tensor") return block_rows >= codes.rows && has_all_columns;
    if (strategy == "channel") return is_in_row && has_all_columns;
    return is_in_row || (strategy != "group" && strategy != "tensor_group");
  };
  if (strategies_.empty() || std::ranges::any_of(strategies_, fits)) return {};
  return fmt::format("a scale is for {} x {} of its {} x {} codes, and the configuration's strategy is '{}'",
                     block_rows, block_columns, codes.rows, codes.columns, fmt::join(strategies_, "' or '"));
}

std::string StatedSchemes::contradiction_of_numbers(const ScaledCodes& codes) const {
  if (!bits_.empty() && !bits_.contains(codes.codes.bits)) {
    return fmt::format("its codes have {} bits, and the configuration states {}", codes.codes.bits,
                       fmt::join(bits_, " or "));
  }
  if (sizes_.empty()) return {};
  // Groups are along the rows of codes, or down their columns if these are stored as [in, out].
  const bool has_index = codes.row_group || codes.column_group;
  const bool is_down = codes.row_group || (codes.scales.grid.block_columns == 1 && codes.scales.grid.block_rows > 1);
  const std::int64_t side = is_down ? codes.scales.grid.block_rows : codes.scales.grid.block_columns;
  const std::int64_t all = is_down ? codes.rows : codes.columns;
  const std::int64_t groups = has_index ? codes.groups : ceil_div(all, std::max<std::int64_t>(1, side));
  const auto fits = [&](std::int64_t size) { return ceil_div(all, size) == groups; };
  if (groups <= 1 || std::ranges::any_of(sizes_, fits)) return {};
  if (has_index) {
    return fmt::format("it has {} groups, and the configuration states groups of {} codes", groups,
                       fmt::join(sizes_, " or "));
  }
  return fmt::format("its groups have {} codes, and the configuration states {}", side, fmt::join(sizes_, " or "));
}

/// compressed-tensors stores zero points of all weights that are not symmetric, and AutoGPTQ and GPTQModel a group
/// index of all. A scheme for the module's bits that states the opposite may be the module's.
std::string StatedSchemes::contradiction_of_parts(const QuantizedModule& module, const ScaledCodes& codes) const {
  using Statement = std::optional<bool> QuantizationScheme::*;
  const auto states = [&](Statement statement, bool value) {
    return std::ranges::any_of(facts_.schemes, [&](const QuantizationScheme& scheme) {
      return scheme.allows_bits(codes.codes.bits) && scheme.*statement == value;
    });
  };
  const bool may_lack_zeros = module.form == QuantizedForm::kPackedInts || module.form == QuantizedForm::kInt8;
  if (facts_.method == "compressed-tensors" && may_lack_zeros && !codes.zeros &&
      states(&QuantizationScheme::is_symmetric, false) && !states(&QuantizationScheme::is_symmetric, true)) {
    return "its zero points are missing, and the configuration states 'symmetric': false";
  }
  // Zero points of symmetric weights are only stored by older versions, as bytes of 0.
  const bool has_packed_zeros = codes.zeros && codes.zeros->codes.packing == Packing::kDownColumn;
  const auto may_have_zeros = [&](const QuantizationScheme& scheme) {
    return scheme.bits == codes.codes.bits && !scheme.is_symmetric.value_or(false);
  };
  if (module.form == QuantizedForm::kPackedInts && has_packed_zeros &&
      states(&QuantizationScheme::is_symmetric, true) && std::ranges::none_of(facts_.schemes, may_have_zeros)) {
    return "it has zero points, and the configuration states 'symmetric': true";
  }
  if (module.form == QuantizedForm::kGptq && formats_.contains("gptq") && formats_.contains("gptq_v2")) {
    return "the configuration states the formats 'gptq' and 'gptq_v2', which store zero points differently";
  }
  // The order of rows has no effect on one group.
  if (module.form == QuantizedForm::kGptq && !codes.row_group && codes.groups > 1 &&
      states(&QuantizationScheme::is_reordered, true) && !states(&QuantizationScheme::is_reordered, false)) {
    return "its g_idx is missing, and the configuration states 'desc_act': true";
  }
  // A scheme of these bits that states no order has none.
  const auto may_be_in_order = [&](const QuantizationScheme& scheme) {
    return scheme.bits == codes.codes.bits && !scheme.is_reordered.value_or(false);
  };
  if (module.form == QuantizedForm::kPackedInts && !codes.column_group && codes.groups > 1 &&
      states(&QuantizationScheme::is_reordered, true) && std::ranges::none_of(facts_.schemes, may_be_in_order)) {
    return "its weight_g_idx is missing, and the configuration states 'actorder': 'group'";
  }
  return {};
}

}  // namespace shard
