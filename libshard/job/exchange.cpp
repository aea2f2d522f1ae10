// Exchange: the work, which writes complete tiles and packs what goes out.
#include "libshard/job/exchange.h"

#include <algorithm>
#include <numeric>
#include <thread>

#include "libshard/core/error.h"

namespace shard {

namespace {

constexpr int kMostPackers = 8;  ///< Their buffers together take a unit of the memory.

}  // namespace

Exchange::Exchange(const ExchangeOf& of, int rank, int ranks)
    : of_(of),
      source_(of.reader.catalog()),
      rank_(rank),
      unit_bytes_(exchange_unit(of.max_memory_bytes)),
      sender_of_([this](const Piece& piece) {
        return of_.holders.sender(source_.storages[piece.storage].file, piece.storage, rank_);
      }),
      tiles_(static_cast<std::size_t>(of.plan.tile_count), Tile::kLocal),
      expect_(static_cast<std::size_t>(ranks)),
      owe_(static_cast<std::size_t>(ranks)) {}

void Exchange::set_written(std::vector<std::uint8_t> written) {
  const std::scoped_lock lock(mutex_);
  for (std::size_t tile = 0; tile < tiles_.size(); ++tile) {
    if (written[tile] != 0) {
      tiles_[tile] = Tile::kWritten;
      continue;
    }
    const std::vector<BoxNeed> needs = needs_of(of_.plan, static_cast<std::int64_t>(tile), sender_of_, rank_);
    if (!needs.empty()) tiles_[tile] = Tile::kRemote;
    for (const BoxNeed& need : needs) ++expect_[static_cast<std::size_t>(need.sender)];
  }
  to_receive_ = std::accumulate(expect_.begin(), expect_.end(), std::int64_t{0});
  remote_left_ = static_cast<std::size_t>(std::ranges::count(tiles_, Tile::kRemote));
  is_known_ = true;
  if (step_ != nullptr) step_->wake();
}

void Exchange::run(const std::function<void()>& copy, const std::stop_token& stop) {
  const auto fail = [this] {
    {
      const std::scoped_lock lock(mutex_);
      if (failure_ == nullptr) failure_ = std::current_exception();
    }
    abort();
  };
  {
    std::vector<std::jthread> packers;
    try {
      for (int i = 0; i < std::min(of_.threads, kMostPackers); ++i) {
        packers.emplace_back([&] {
          try {
            pack(stop);
          } catch (...) {
            fail();
          }
        });
      }
      copy();
      std::unique_lock lock(mutex_);
      is_copied_ = true;
      changed_.wait(lock, [this] { return (is_agreed() && to_send_ == 0) || must_end(); });
    } catch (...) {
      fail();
    }
    const std::scoped_lock lock(mutex_);
    is_over_ = true;
    changed_.notify_all();
  }
  if (failure_ != nullptr) std::rethrow_exception(failure_);
  check_stop(stop);
}

std::optional<std::int64_t> Exchange::next(const std::function<void()>& before_waiting) {
  std::unique_lock lock(mutex_);
  for (bool has_let_go = false;;) {
    if (is_stopped_) throw Error(ErrorCode::kInterrupted, "interrupted");
    if (is_aborted_) return std::nullopt;
    if (!ready_.empty()) {
      const std::int64_t tile = ready_.front()->tile;
      ready_.pop_front();
      --remote_left_;
      return tile;
    }
    const auto from = tiles_.begin() + next_local_;
    next_local_ += std::find(from, tiles_.end(), Tile::kLocal) - from;
    if (next_local_ < std::ssize(tiles_)) return next_local_++;
    if (remote_left_ == 0) return std::nullopt;
    if (!has_let_go) {
      lock.unlock();
      before_waiting();
      has_let_go = true;
      lock.lock();
      continue;
    }
    ++idle_;
    changed_.wait(lock);
    --idle_;
  }
}

std::optional<ReceivedBox> Exchange::received(std::int64_t tile, std::uint32_t piece) {
  const std::scoped_lock lock(mutex_);
  const auto given = given_.find(tile);
  if (given == given_.end()) return std::nullopt;
  const auto& [batch, awaited] = given->second;
  const auto box = std::ranges::lower_bound(awaited->boxes, piece, {}, &AwaitedTile::Box::piece);
  if (box == awaited->boxes.end() || box->piece != piece) return std::nullopt;
  ReceivedBox received = batch->received(*box);
  received.is_on_device = of_.transport.is_on_device();
  return received;
}

bool Exchange::has_on_device(std::int64_t tile) {
  const std::scoped_lock lock(mutex_);
  return of_.transport.is_on_device() && given_.contains(tile);
}

void Exchange::done(std::int64_t tile) {
  const std::scoped_lock lock(mutex_);
  const auto given = given_.find(tile);
  if (given == given_.end()) return;  // It needed nothing of others.
  ExchangeBatch* const batch = given->second.first;
  given_.erase(given);
  if (!batch->write()) return;
  std::erase_if(batches_, [batch](const auto& each) { return each.get() == batch; });
  intake_.write();
  if (step_ != nullptr) step_->wake();
}

void Exchange::abort() {
  const std::scoped_lock lock(mutex_);
  is_aborted_ = true;
  changed_.notify_all();
}

bool Exchange::waits() const {
  const std::scoped_lock lock(mutex_);
  return (is_copied_ || idle_ == std::max(1, of_.threads)) && shipment_.is_packed();
}

/// Reads what goes out next.
void Exchange::pack(const std::stop_token& stop) {
  BoxReader reader(source_, of_.reader, of_.source_checks, of_.progress, unit_bytes_ / kMostPackers, stop);
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return is_over_ || must_end() || shipment_.taken < shipment_.boxes.size(); });
    if (is_over_ || must_end()) return;
    const std::size_t i = shipment_.taken++;
    const BoxRequest box = shipment_.boxes[i];  // The shipment stays until all of it is packed.
    const PieceMemory memory = shipment_.memory;
    const std::int64_t begin = shipment_.begins[i];
    lock.unlock();
    const std::span to(memory.packed + begin, static_cast<std::size_t>(box.bytes));
    reader.read(box.piece, Box(box.offsets, box.sizes), box.element_bytes, to);
    of_.transport.seal(memory, begin, box.bytes);
    lock.lock();
    ++shipment_.packed;
    if (shipment_.is_packed() && step_ != nullptr) step_->wake();
  }
}

}  // namespace shard
