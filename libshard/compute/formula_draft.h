/// \file
/// FormulaDraft: the formula of one quantized module while it is made, and the errors about the module's tensors.
/// Inside libshard/compute only.
///
/// A function for each form checks the tensors and fills in the codes. find_formulas.cpp chooses it. The forms of one
/// tool may have a source of their own.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "libshard/catalog/quantized.h"
#include "libshard/compute/find_formulas.h"
#include "libshard/compute/formula.h"
#include "libshard/compute/stated_schemes.h"
#include "libshard/compute/unknown_codes.h"
#include "libshard/core/error.h"

namespace shard {

inline constexpr std::string_view kWrongDtype = "its dtype has no meaning there";

/// ComfyUI's description of a module, in JSON.
inline constexpr std::string_view kOfComfy = ".comfy_quant";

/// Whether a tensor contains numbers about the form, under a name that no other tensor has.
bool describes_form(std::string_view name);

/// Whether scales with the dtype of that tensor are exponents.
bool are_exponents(const Tensor& scale);

/// The inputs of the search, which all modules share.
struct Search {
  const Catalog& catalog;
  const QuantizedPart part;
  DType dtype;
  const QuantizationFacts& facts;
  const StatedSchemes stated;
  const ReadSmall& read;
  const std::string unknown_form = unknown_form_of_all(part, stated);
  const bool is_tiled_by_comfy = has_tiles_of_comfy(catalog);
};

/// The tensors of a module, as indices into the catalog.
struct ModuleTensors {
  static constexpr std::uint32_t kNone = kNoIndex;

  std::uint32_t weight = kNone, scale = kNone, second = kNone, zeros = kNone, shape = kNone, group_index = kNone,
                book = kNone, nested_book = kNone, description = kNone, layout = kNone;
  std::uint32_t repeated = kNone;  ///< It has the role of an earlier tensor.
  std::uint32_t beside = kNone;    ///< See is_beside_weight.
};

struct FormulaDraft {
  static constexpr std::uint32_t kNone = ModuleTensors::kNone;

  FormulaDraft(const Search& all, const QuantizedModule& its_module);

  const Tensor& at(std::uint32_t tensor) const { return search.catalog.tensors[tensor]; }
  const Tensor& weight() const { return at(parts.weight); }
  /// \throws Error kCorruption  there is none
  const Tensor& scale() const;

  /// kCorruption: the tensor contradicts the module or the configuration.
  Error wrong(std::uint32_t tensor, std::string_view what) const;
  /// kUnsupported: the module has no formula.
  Error unsupported(std::string_view what) const;
  /// \throws Error kUnsupported  `reason`, unless it is empty
  void refuse_if(const std::string& reason) const;
  /// \param what  the tensor and a verb for the message: "its scales are"
  /// \throws Error kCorruption  there is no such tensor
  void need(std::uint32_t tensor, std::string_view what) const;
  /// \throws Error kCorruption  the tensor has a different number of elements
  void check_count(std::uint32_t tensor, std::int64_t wanted) const;
  /// The same, and that its rows have `columns` numbers.
  void check_matrix(std::uint32_t tensor, std::int64_t rows, std::int64_t columns) const;
  /// The numbers of a small tensor of integers.
  /// \throws Error kCorruption  a different dtype, or a negative number; as ReadSmall
  std::vector<std::int64_t> numbers_of(std::uint32_t tensor) const;
  bool is_all_zero(std::uint32_t tensor) const;

  /// Sets the shape of the result and the matrices of codes.
  void set_matrices(std::span<const std::int64_t> shape);
  /// Sets blocks of 1 x `columns`.
  void set_row_groups(std::int64_t columns);
  /// Sets the second level of scales: one number, or one per slice. `divides`: scales are divided by it.
  /// \throws Error kCorruption  it is missing, or has a different number of elements
  void set_second(bool divides);
  /// Exchanges the last two dimensions of the result.
  void transpose();
  /// References compute in the dtype of the scales.
  void round_as_scales();

  const Search& search;
  const QuantizedModule& module;
  ModuleTensors parts;
  Formula formula;
  ScaledCodes codes;  ///< The value of `formula`.

 private:
  void take(const QuantizedMember& member);
};

/// The first tensor whose dtype has no meaning in its place, such as scales that are integers. Index into the catalog.
std::optional<std::uint32_t> find_wrong_dtype(const Catalog& catalog, const ScaledCodes& codes);

/// "float32 [2, 3]"
std::string dtype_and_shape(const Tensor& tensor);

// Forms with sources of their own. \throws Error kCorruption, kUnsupported
void make_bitsandbytes4(FormulaDraft& draft);
void make_bitsandbytes8(FormulaDraft& draft);
void make_mlx(FormulaDraft& draft);

}  // namespace shard
