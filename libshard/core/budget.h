/// \file
/// Budget: the memory and work that an open source may cause, in proportion to the bytes read from its files.
///
/// A pickle may name one list a million times, a stream of a kilobyte may decode to a gigabyte. So everything a reader
/// creates or visits at a file's request is charged here, and every byte it reads raises the limit. The reader owns the
/// budget; its arenas charge their memory themselves, everything else is charged where it happens. Counts alone decide,
/// so the same files are refused on any machine and with any number of threads.
///
/// All constants are defined here. The maximum noted beside each is measured by tests/formats/honest_budget_test.cpp on
/// the golden checkpoints.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace shard {

/// Kinds of memory and work that a file can cause.
enum class Charge : std::uint8_t {
  kArena,        ///< Bytes of values, names, paths and shapes in the reader's arenas.
  kBytes,        ///< Bytes that are held as they were read or decoded, and texts that are listed once more.
  kLongNames,    ///< Bytes of names past their first kShortName: one long key may stand before any number of names.
  kEntries,      ///< Tensors and objects that a catalog lists, however they are shared in the file.
  kChunks,       ///< Chunks of tensors, with what is stored for each.
  kShards,       ///< Shards that a file names.
  kPlacedBoxes,  ///< Boxes that a sharding means for a shape.
  kRanks,        ///< Ranks on meshes.
  kInflated,     ///< Bytes of pickles that were compressed one by one.
  kDecoded,      ///< Bytes that come out of compressed streams that are looked into.
  kCompared,     ///< Bytes of tensors that ranks hold alike, which are compared.
  kVisits,       ///< Steps of walks over values, and of searches in them.
};
inline constexpr std::size_t kChargeCount = static_cast<std::size_t>(Charge::kVisits) + 1;

/// The price of each kind, in bytes of memory.
struct ChargePrice {
  std::string_view name;  ///< In messages.
  std::int64_t units;     ///< For so many
  std::int64_t count;     ///< of them.
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

/// Names of checkpoints are shorter.
inline constexpr std::int64_t kShortName = 256;

/// Allowed for every source, so that checkpoints of a few kilobytes never reach the limit.
inline constexpr std::int64_t kBudgetFloor = 16 << 20;
/// For each of the first kSmallBytes that were read to learn about the checkpoint. A list of small integers, two bytes
/// each, costs 65, and 88 where it lies six dicts deep; golden checkpoints take less than 2 % of what they may. More
/// than 3 MiB of them would let a list of numbers take more than 512 MiB before it is refused.
inline constexpr std::int64_t kBudgetPerByte = 112, kSmallBytes = 3 << 20;
/// For each further one: metadata that is larger describes tensors and chunks, which take 10 at most.
inline constexpr std::int64_t kBudgetPerFurtherByte = 16;
/// For each byte that its data files hold: long lists of numbers, and pickles that are compressed as a whole, are small
/// beside the data.
inline constexpr std::int64_t kBudgetPerDataByte = 8;

/// Tensors may claim at most this many bytes, or this multiple of all files' bytes, whatever the files really contain:
/// expanded tensors, views of one storage, zeros that shrink. 1032 is the most that deflate makes of a byte, so that
/// any record of a zip may be named; below the floor are honest small files (an expanded mask, zeros in zstd).
inline constexpr std::int64_t kNamedFloor = std::int64_t{1} << 30, kNamedPerFileByte = 1032;

/// Threads: one at a time.
class Budget {
 public:
  /// Raises the limit for `bytes` of metadata read and `data_bytes` of data files.
  void earn(std::int64_t bytes, std::int64_t data_bytes = 0) noexcept;
  /// Charges `count` of `what`. Cost: constant.
  /// \throws Error kCorruption (kind bad_header)  all charges together exceed the limit; names the one that grew.
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
