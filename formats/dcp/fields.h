/// \file
/// The classes of `.metadata` and typed access to their attributes, whatever module and spelling a torch gave them.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "libshard/core/error.h"
#include "libshard/core/value.h"

namespace shard::dcp {

/// The classes that `.metadata` is made of.
enum class Class { kMetadata, kTensor, kBytes, kChunk, kProperties, kIndex, kStorageInfo, kSize };
inline constexpr std::size_t kClassCount = 8;

inline constexpr std::string_view kMetadataModule = "torch.distributed.checkpoint.metadata";
inline constexpr std::string_view kOldMetadataModule = "torch.distributed._shard.checkpoint.metadata";  ///< torch 1.13.

/// kCorruption of kind bad_pickle.
Error damaged(const std::string& message);

/// Threads: one. What is found wrong is thrown as kCorruption of kind bad_pickle; `what` names the place in messages.
class Fields {
 public:
  /// Sizes and offsets go into `arena`.
  explicit Fields(Arena& arena) : arena_(arena) {}

  bool is(const Value& value, Class id);
  /// The attributes of an object of a class: BUILD's dict, or the dict of slots behind it.
  const Value& state_of(const Value& object, Class id, std::string_view what);
  /// BUILD's argument as it is. \throws Error kCorruption  another class, or no BUILD.
  const Value& raw_state_of(const Value& object, Class id, std::string_view what);

  static const Value& need(const Value& attributes, std::string_view name, std::string_view what);
  static std::int64_t need_natural(const Value& attributes, std::string_view name, std::string_view what);
  static std::span<Value*> need_mapping(const Value& value, std::string_view what);

  /// A torch.Size, or a plain tuple or list of numbers.
  /// \throws Error kUnsupported  more than kMaxDims.
  Dims dims(const Value& value, std::string_view tensor, std::string_view what);
  Dims zeros(int count) { return arena_.zeros(count); }
  std::string_view copy(std::string_view text) { return arena_.copy(text); }
  template <class T>
  std::span<T> array(std::size_t count) {
    return arena_.array<T>(count);
  }

 private:
  Arena& arena_;
  std::array<const Value*, kClassCount> seen_{};  // The global that named each class last: mostly there is one.
};

}  // namespace shard::dcp
