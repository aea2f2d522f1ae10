#include <fmt/format.h>

#include <memory>
#include <utility>
#include <vector>

#include "libshard/compute/computed_reader.h"
#include "libshard/compute/find_formulas.h"
#include "libshard/core/checked.h"
#include "libshard/core/error.h"
#include "libshard/exec/tensor_reader.h"

namespace shard {

ReadSmall small_reader(Reader& reader) {
  return [&reader](std::uint32_t index) {
    reader.locate(std::span(&index, 1));
    const Tensor& tensor = reader.catalog().tensors[index];
    const std::int64_t elements = checked_numel(tensor.shape), bytes = checked_bytes(elements, tensor.dtype);
    if (bytes > kMostSmallBytes) {
      throw Error(ErrorCode::kCorruption, fmt::format("'{}' is too large for a description", tensor.name))
          .of_tensor(tensor.name)
          .of_kind(FindingKind::kOutOfBounds)
          .expected(kMostSmallBytes)
          .found(bytes);
    }
    std::vector<std::byte> content(static_cast<std::size_t>(bytes));
    Progress progress;
    TensorReader(reader.catalog(), reader, index, progress).read(0, elements, content);
    return content;
  };
}

std::unique_ptr<Reader> dequantized(std::unique_ptr<Reader> inner, DType dtype, const QuantizationFacts& facts,
                                    Findings& findings) {
  Computation found = find_formulas(inner->catalog(), dtype, facts, small_reader(*inner), findings);
  if (found.formulas.empty() && found.dropped.empty()) return inner;
  std::vector<std::unique_ptr<Reader>> readers;
  readers.push_back(std::move(inner));
  auto computed = std::make_unique<ComputedReader>(std::move(readers), std::move(found));
  if (findings.goes_on()) computed->lose_with_operands(findings);
  return computed;
}

}  // namespace shard
