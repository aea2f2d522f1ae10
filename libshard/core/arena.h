/// \file
/// Memory that lives as long as a catalog: names, shapes and values of a million tensors without a million frees.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <memory_resource>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "libshard/core/budget.h"

namespace shard {

/// A shape, offsets or strides: a pointer to [count, d0, d1, ...] in an Arena. 8 bytes, copied freely. A range, so it
/// converts to std::span.
/// Ownership: a view of the Arena that made it, which must live. Default: no dimensions.
class Dims {
 public:
  Dims() = default;
  int size() const { return static_cast<int>(data_[0]); }
  bool empty() const { return data_[0] == 0; }
  std::int64_t operator[](int i) const { return data_[1 + i]; }
  const std::int64_t* begin() const { return data_ + 1; }
  const std::int64_t* end() const { return data_ + 1 + data_[0]; }
  std::span<const std::int64_t> span() const { return {begin(), end()}; }
  friend bool operator==(Dims a, Dims b) {
    return a.data_ == b.data_ ||
           (a.data_[0] == b.data_[0] &&
            std::memcmp(a.begin(), b.begin(), static_cast<std::size_t>(a.data_[0]) * sizeof(std::int64_t)) == 0);
  }

 private:
  friend class Arena;
  explicit Dims(const std::int64_t* data) : data_(data) {}
  static constexpr std::int64_t kNone[1] = {0};
  const std::int64_t* data_ = kNone;
};

/// Bump allocator; frees everything at its own end.
/// Threads: not safe to allocate from two. What was allocated may be read by all.
class Arena {
 public:
  Arena() = default;
  /// For data that a file describes. All memory is charged to `budget` (Charge::kArena) when it is taken from the
  /// system, so every allocation may throw Error kCorruption.
  explicit Arena(std::shared_ptr<Budget> budget) : blocks_(std::move(budget)) {}
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  /// Charges the budget, if there is one. \throws Error kCorruption
  void charge(Charge what, std::int64_t count = 1) {
    if (Budget* const budget = blocks_.budget.get()) budget->charge(what, count);
  }
  /// Adds to the budget, if there is one: see Budget::earn.
  void earn(std::int64_t bytes, std::int64_t data_bytes = 0) {
    if (Budget* const budget = blocks_.budget.get()) budget->earn(bytes, data_bytes);
  }
  /// Null if nothing is charged.
  const std::shared_ptr<Budget>& budget() const { return blocks_.budget; }

  void* allocate(std::size_t bytes, std::size_t align) { return pool_.allocate(bytes, align); }
  /// `n` value-initialised objects that need no destructor.
  template <class T>
  std::span<T> array(std::size_t n) {
    static_assert(std::is_trivially_destructible_v<T>);
    T* data = static_cast<T*>(allocate(n * sizeof(T), alignof(T)));
    std::uninitialized_value_construct_n(data, n);
    return {data, n};
  }
  std::string_view copy(std::string_view text);
  /// Adjacent calls with equal values share memory, so a run of tensors of one shape costs one copy.
  Dims dims(std::span<const std::int64_t> values);
  Dims zeros(int n);
  /// Keeps `owner` alive as long as the arena, so that views into it may be stored.
  void adopt(std::shared_ptr<const void> owner) { adopted_.push_back(std::move(owner)); }

 private:
  /// Provides the pool's blocks. Large blocks use huge pages if the system supports them on request. Otherwise, a
  /// catalog of a hundred megabytes spends as much time in page faults as in its construction.
  struct Blocks final : std::pmr::memory_resource {
    explicit Blocks(std::shared_ptr<Budget> budget_or_null = nullptr) : budget(std::move(budget_or_null)) {}
    void* do_allocate(std::size_t bytes, std::size_t align) override;
    void do_deallocate(void* block, std::size_t bytes, std::size_t align) override;
    bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override { return this == &other; }

    std::shared_ptr<Budget> budget;
  };

  Blocks blocks_;
  std::pmr::monotonic_buffer_resource pool_{1 << 12, &blocks_};
  std::vector<std::shared_ptr<const void>> adopted_;
  Dims recent_[64];
  Dims zeros_[16];
};

}  // namespace shard
