#include "libshard/compute/operand.h"

#include "libshard/core/checked.h"
#include "libshard/exec/cast.h"

namespace shard {

Operand::Operand(const Reader& reader, std::uint32_t tensor, std::int64_t memory_bytes)
    : catalog_(reader.catalog()),
      tensor_(catalog_.tensors[tensor]),
      elements_(checked_numel(tensor_.shape)),
      element_bytes_(element_bytes(tensor_.dtype)),
      pool_(memory_bytes),
      reader_(catalog_, reader, tensor, progress_, throwing_findings(), &pool_) {}

std::span<const std::byte> Operand::read(std::int64_t begin, std::int64_t end) {
  if (begin < begin_ || end > end_) {
    kept_.resize(static_cast<std::size_t>((end - begin) * element_bytes_));
    end_ = begin;  // Nothing is kept if the read fails.
    reader_.read(begin, end, kept_);
    begin_ = begin;
    end_ = end;
  }
  return std::span<const std::byte>(kept_).subspan(static_cast<std::size_t>((begin - begin_) * element_bytes_),
                                                   static_cast<std::size_t>((end - begin) * element_bytes_));
}

void Operand::read_floats(std::int64_t begin, std::span<float> out) {
  cast(dtype(), read(begin, begin + std::ssize(out)), DType::kFloat32, std::as_writable_bytes(out));
}

Error Operand::wrong(const std::string& what, FindingKind kind) const {
  Error error(ErrorCode::kCorruption, what);
  if (tensor_.chunk_count > 0) error.in_file(catalog_.file_of(tensor_).path);
  return error.of_tensor(tensor_.name).of_kind(kind);
}

}  // namespace shard
