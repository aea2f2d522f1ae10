/// \file Budget: limits the memory and work that an open source may cause, in proportion to the bytes read from it.
///
/// A pickle may name one list a million times, and a stream of a kilobyte may decode to a gigabyte. So everything that
/// a reader creates or visits at a file's request is charged here, and every byte that it reads raises the limit. The
/// reader owns the budget. Its arenas charge their memory themselves. Everything else is charged by the code that
/// causes it. The limit depends only on counts, so the machine and the number of threads do not matter.
///
/// All constants are defined here. tests/formats/honest_budget_test.cpp measures the maximum that is noted with each,
/// on the golden checkpoints.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace shard {

/// Kinds of memory and work that a file can cause.
enum class Charge : std::uint8_t {
  kArena,        ///< Bytes of values, names, paths and shapes in the reader's arenas.
  kBytes,        ///< Bytes that are kept as they were read or decoded, and texts that are listed once more.
  kLongNames,    ///< Bytes of names beyond their first kShortName, because one long key may precede any number of
                 ///< names.
  kEntries,      ///< Tensors and objects that a catalog lists, regardless of how they are shared in the file.
  kChunks,       ///< Chunks of tensors, including their stored tensors.
  kShards,       ///< Shards that a file names.
  kPlacedBoxes,  ///< Boxes that a sharding defines for a shape.
  kRanks,        ///< Ranks on meshes.
  kInflated,     ///< Bytes of pickles that were compressed individually.
  kDecoded,      ///< Bytes decoded from compressed streams that are inspected.
  kCompared,     ///< Bytes of tensors that are on several ranks, and are compared.
  kVisits,       ///< Steps of walks over values, and of searches in them.
};
inline constexpr std::size_t kChargeCount = static_cast<std::size_t>(Charge::kVisits) + 1;

/// The price of each kind, in bytes of memory.
struct ChargePrice {
  std::string_view name;  ///< For messages.
  std::int64_t units;     ///< This many units
  std::int64_t count;     ///< are charged for this count.
};
inline constexpr std::array<ChargePrice, kChargeCount> kChargePrices{{
    {"bytes of values and names", 1, 1},
    {"bytes that were read or decoded", 1, 1},
    {"bytes of long names", 8, 1},
    {"tensors and objects", 96, 1},
    {"chunks", 192, 1},
    {"shards", 256, 1},
    {"boxes of shards", 1024, 1},
    {"ranks", 8, 1},
    {"bytes of compressed pickles", 4, 1},
    {"decoded bytes", 1, 64},
    {"compared bytes of replicas", 1, 4},
    {"steps over values", 16, 1},
}};

/// Names in checkpoints are usually shorter.
inline constexpr std::int64_t kShortName = 256;

/// The allowance of every source, so that checkpoints of a few kilobytes never reach the limit.
inline constexpr std::int64_t kBudgetFloor = 16 << 20;
/// The allowance for each of the first kSmallBytes bytes of metadata. A list of small integers, two bytes each, costs
/// 65 units, and 88 if it is nested in six dicts. Golden checkpoints use less than 2 % of their allowance. With more
/// than 3 MiB, a list of numbers could use more than 512 MiB before it is refused.
inline constexpr std::int64_t kBudgetPerByte = 112, kSmallBytes = 3 << 20;
/// The allowance for each further byte. Larger metadata describes tensors and chunks, which cost 10 at most.
inline constexpr std::int64_t kBudgetPerFurtherByte = 16;
/// The allowance for each byte of data files. Long lists of numbers, and pickles that are compressed as a whole, are
/// small compared with the data.
inline constexpr std::int64_t kBudgetPerDataByte = 8;

/// The most data, in bytes, for which a map that divides tensors gets the allowance above, because few names may become
/// those of 100,000 experts, of 600 units each.
inline constexpr std::int64_t kMostMappedData = 16 << 20;

/// The limit on the bytes that tensors may claim, absolute or as a multiple of all files' bytes, regardless of the real
/// content: expanded tensors, views of one storage, zeros that compress well. 1032 is the largest factor of deflate, so
/// that any record of a zip file is allowed. Honest small files (an expanded mask, zeros in zstd) are below the floor.
inline constexpr std::int64_t kNamedFloor = std::int64_t{1} << 30, kNamedPerFileByte = 1032;

/// Threads: one at a time.
class Budget {
 public:
  /// Raises the limit for `bytes` of metadata read and `data_bytes` of data files.
  void earn(std::int64_t bytes, std::int64_t data_bytes = 0) noexcept;
  /// Charges `count` of `what`. Cost: constant.
  /// \throws Error kCorruption (kind bad_header)  all charges together exceed the limit; the message names the last.
  void charge(Charge what, std::int64_t count = 1) {
    const ChargePrice& price = kChargePrices[static_cast<std::size_t>(what)];
    std::int64_t& total = counts_[static_cast<std::size_t>(what)];
    if (__builtin_add_overflow(total, count, &total)) refuse(what);
    if (__builtin_mul_overflow(count, price.units, &count)) refuse(what);
    if (__builtin_add_overflow(spent_, count / price.count, &spent_) || spent_ > limit_) refuse(what);
  }

  std::int64_t read() const { return read_; }    ///< Bytes.
  std::int64_t spent() const { return spent_; }  ///< Units.
  std::int64_t limit() const { return limit_; }  ///< Units.
  std::int64_t count(Charge what) const { return counts_[static_cast<std::size_t>(what)]; }

 private:
  [[noreturn]] void refuse(Charge what) const;

  std::int64_t read_ = 0, data_ = 0, spent_ = 0, limit_ = kBudgetFloor;
  std::array<std::int64_t, kChargeCount> counts_{};
};

}  // namespace shard
