#include "libshard/job/exchange.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <thread>
#include <utility>

#include "libshard/core/error.h"

namespace shard {

namespace {

/// Words. A rank that is not ready keeps all from moving; flags say what the others bring.
constexpr std::int64_t kNotReady = -1, kFinished = 0, kReady = 1, kHasRequests = 2, kHasBoxes = 4;
constexpr int kMostPackers = 8;  ///< Their buffers together take a unit of the memory.

[[noreturn]] void fail_protocol(int rank) {
  throw Error(ErrorCode::kPeer, fmt::format("rank {} sends what nobody asked for", rank));
}

}  // namespace

Exchange::Exchange(const ExchangeOf& of, int rank, int ranks)
    : of_(of),
      source_(of.reader.catalog()),
      rank_(rank),
      unit_bytes_(exchange_unit(of.max_memory_bytes)),
      most_boxes_(most_boxes(ranks)),
      is_remote_(static_cast<std::size_t>(of.plan.tile_count)),
      expect_(static_cast<std::size_t>(ranks)),
      owe_(static_cast<std::size_t>(ranks)) {
  for (const Unit& unit : of_.plan.units) {
    const std::span<const Piece> from = of_.plan.from(unit);
    for (std::int64_t tile = unit.first_tile; tile < unit.first_tile + unit.tile_count; ++tile) {
      for_each_need(of_.plan, unit, tile, [&](std::uint32_t piece, const Box&) {
        const int sender = sender_of(from[piece]);
        if (sender == rank_) return;
        is_remote_[static_cast<std::size_t>(tile)] = true;
        ++expect_[static_cast<std::size_t>(sender)];
      });
    }
  }
  to_receive_ = std::accumulate(expect_.begin(), expect_.end(), std::int64_t{0});
  remote_left_ = static_cast<std::size_t>(std::ranges::count(is_remote_, true));
}

int Exchange::sender_of(const Piece& piece) const {
  return of_.holders.sender(source_.storages[piece.storage].file, piece.storage, rank_);
}

void Exchange::agree(Group& group) {
  std::vector<std::span<const std::byte>> to;
  std::vector<std::span<std::byte>> from;
  for (std::size_t rank = 0; rank < expect_.size(); ++rank) {
    const std::size_t count = rank == static_cast<std::size_t>(rank_) ? 0 : 1;
    to.push_back(std::as_bytes(std::span(expect_).subspan(rank, count)));
    from.push_back(std::as_writable_bytes(std::span(owe_).subspan(rank, count)));
  }
  group.exchange(to, from);
  to_send_ = std::accumulate(owe_.begin(), owe_.end(), std::int64_t{0});
}

// ---- The work's side.

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
      changed_.wait(lock, [this] { return to_send_ == 0 || must_end(); });
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
    const auto end = static_cast<std::int64_t>(is_remote_.size());
    while (next_local_ < end && is_remote_[static_cast<std::size_t>(next_local_)]) ++next_local_;
    if (next_local_ < end) return next_local_++;
    if (remote_left_ == 0) return std::nullopt;
    if (!has_let_go) {
      lock.unlock();
      before_waiting();
      has_let_go = true;
      lock.lock();
      continue;
    }
    changed_.wait(lock);
  }
}

std::optional<ReceivedBox> Exchange::received(std::int64_t tile, std::uint32_t piece) {
  const std::scoped_lock lock(mutex_);
  const auto given = given_.find(tile);
  if (given == given_.end()) return std::nullopt;
  const auto& [batch, awaited] = given->second;
  const auto box = std::ranges::lower_bound(awaited->boxes, piece, {}, &AwaitedBox::piece);
  if (box == awaited->boxes.end() || box->piece != piece) return std::nullopt;
  const auto dims = static_cast<std::size_t>(box->dims);
  const std::span<const std::int64_t> numbers = std::span(batch->numbers).subspan(box->numbers, 2 * dims);
  return ReceivedBox{numbers.first(dims), numbers.subspan(dims), box->data};
}

void Exchange::done(std::int64_t tile) {
  const std::scoped_lock lock(mutex_);
  const auto given = given_.find(tile);
  if (given == given_.end()) return;  // It needed nothing of others.
  Batch* const batch = given->second.first;
  given_.erase(given);
  if (--batch->unwritten != 0) return;
  std::erase_if(batches_, [batch](const auto& each) { return each.get() == batch; });
  intake_.write();
  if (step_ != nullptr) step_->wake();
}

void Exchange::abort() {
  const std::scoped_lock lock(mutex_);
  is_aborted_ = true;
  changed_.notify_all();
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
    std::byte* const to = shipment_.memory.get() + shipment_.begins[i];
    lock.unlock();
    reader.read(box.piece, Box(box.offsets, box.sizes), box.element_bytes, {to, static_cast<std::size_t>(box.bytes)});
    lock.lock();
    ++shipment_.packed;
    if (shipment_.is_packed() && step_ != nullptr) step_->wake();
  }
}

// ---- The group's side.

void Exchange::begin(StepHandle& step) {
  const std::scoped_lock lock(mutex_);
  step_ = &step;
}

void Exchange::end() {
  const std::scoped_lock lock(mutex_);
  step_ = nullptr;
}

void Exchange::stop() {
  const std::scoped_lock lock(mutex_);
  is_stopped_ = true;
  changed_.notify_all();
}

std::int64_t Exchange::word() {
  const std::scoped_lock lock(mutex_);
  if (is_finished()) return kFinished;
  if (!is_round_prepared_) prepare_round();
  if (!is_round_prepared_ || !shipment_.is_packed()) return kNotReady;
  return kReady | (requests_.empty() ? 0 : kHasRequests) | (shipment_.boxes.empty() ? 0 : kHasBoxes);
}

/// Opens the batches that this round asks for, as far as there is memory for them.
void Exchange::prepare_round() {
  for (;;) {
    const auto from = is_remote_.begin() + next_remote_;
    next_remote_ += std::find(from, is_remote_.end(), true) - from;
    if (next_remote_ == std::ssize(is_remote_) || !intake_.wants_batch()) break;
    if (!intake_.has_room()) return;
    open_batch();
  }
  is_round_prepared_ = true;
}

void Exchange::open_batch() {
  auto batch = std::make_unique<Batch>();
  std::map<int, WireWriter> requests;
  std::map<int, std::int64_t> boxes;
  for (auto end = static_cast<std::int64_t>(is_remote_.size()); next_remote_ < end; ++next_remote_) {
    if (!is_remote_[static_cast<std::size_t>(next_remote_)]) continue;
    std::int64_t bytes = 0;
    bool is_long = false;
    const Unit& unit = of_.plan.unit_of(next_remote_);
    for_each_need(of_.plan, unit, next_remote_, [&](std::uint32_t piece, const Box& box) {
      const int sender = sender_of(of_.plan.from(unit)[piece]);
      if (sender == rank_) return;
      bytes += box.numel() * element_bytes(unit.from);
      is_long = ++boxes[sender] > most_boxes_ || is_long;
    });
    if (!batch->tiles.empty() && (is_long || batch->bytes + bytes > unit_bytes_)) break;
    add_tile(*batch, next_remote_, requests);
  }
  lay_out(*batch);
  // A round asks for one batch or two.
  for (auto& [sender, writer] : requests) requests_[sender].text(as_text(writer.take()));
  intake_.open();
  batches_.push_back(std::move(batch));
}

void Exchange::add_tile(Batch& batch, std::int64_t tile, std::map<int, WireWriter>& requests) {
  const Unit& unit = of_.plan.unit_of(tile);
  const std::span<const Piece> from = of_.plan.from(unit);
  AwaitedTile& awaited = batch.tiles.emplace_back(AwaitedTile{tile, {}, 0});
  for_each_need(of_.plan, unit, tile, [&](std::uint32_t piece, const Box& box) {
    const int sender = sender_of(from[piece]);
    if (sender == rank_) return;
    const auto dims = static_cast<std::ptrdiff_t>(box.dims);
    const std::int64_t bytes = box.numel() * element_bytes(unit.from);
    awaited.boxes.push_back({piece, batch.numbers.size(), box.dims, sender, bytes});
    batch.numbers.insert(batch.numbers.end(), box.offset.begin(), box.offset.begin() + dims);
    batch.numbers.insert(batch.numbers.end(), box.size.begin(), box.size.begin() + dims);
    batch.regions[sender].bytes += bytes;
    batch.bytes += bytes;
    write_request(requests[sender], from[piece], box, element_bytes(unit.from));
  });
  awaited.missing = awaited.boxes.size();
  batch.missing += awaited.boxes.size();
  ++batch.unwritten;
}

/// Gives every box its memory: boxes of one rank follow one another as they will arrive.
void Exchange::lay_out(Batch& batch) {
  batch.memory = std::make_unique_for_overwrite<std::byte[]>(static_cast<std::size_t>(batch.bytes));
  std::int64_t begin = 0;
  std::map<int, std::byte*> ends;
  for (auto& [sender, region] : batch.regions) {
    region.data = ends[sender] = batch.memory.get() + begin;
    begin += region.bytes;
  }
  for (AwaitedTile& tile : batch.tiles) {
    for (AwaitedBox& box : tile.boxes) {
      box.data = ends[box.sender];
      ends[box.sender] += box.bytes;
      batch.regions[box.sender].boxes.emplace_back(&tile, box.bytes);
    }
  }
}

bool Exchange::move(Group& group, std::span<const std::int64_t> words) {
  std::int64_t flags = 0;
  for (const std::int64_t word : words) {
    if (word == kNotReady) return false;
    flags |= word;
  }
  if ((flags & (kHasRequests | kHasBoxes)) == 0) return false;
  const std::vector<std::int64_t> controls = exchange_controls(group);
  const auto ranks = static_cast<std::size_t>(group.size());
  const std::span sizes = std::span(controls).first(ranks), boxes = std::span(controls).subspan(ranks);
  if ((flags & kHasRequests) != 0) exchange_requests(group, sizes);
  Shipment packed;
  {
    const std::scoped_lock lock(mutex_);
    packed = std::exchange(shipment_, make_shipment());  // Threads pack the next one while this one travels.
    changed_.notify_all();
  }
  if ((flags & kHasBoxes) != 0) exchange_boxes(group, packed, boxes);
  const std::scoped_lock lock(mutex_);
  is_round_prepared_ = false;
  changed_.notify_all();
  return true;
}

/// Counts that ranks which still have boxes for each other tell: bytes of requests to those who send, boxes to those
/// who receive. \returns what this rank is told, by rank: the former, then the latter.
std::vector<std::int64_t> Exchange::exchange_controls(Group& group) {
  const auto ranks = static_cast<std::size_t>(group.size());
  std::map<int, Bytes>& requests = messages_;
  requests.clear();
  for (auto& [rank, writer] : requests_) requests[rank] = writer.take();
  requests_.clear();
  std::vector<std::array<std::int64_t, 2>> told(ranks), heard(ranks);
  std::vector<std::span<const std::byte>> to(ranks);
  std::vector<std::span<std::byte>> from(ranks);
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    std::size_t out = 0, in = 0;
    if (expect_[rank] > 0) {
      const auto asked = requests.find(static_cast<int>(rank));
      told[rank][out++] = asked == requests.end() ? 0 : std::ssize(asked->second);
      ++in;
    }
    if (owe_[rank] > 0) {
      const auto grant = std::ranges::find(shipment_.grants, static_cast<int>(rank), &Outlet::Grant::rank);
      told[rank][out++] = grant == shipment_.grants.end() ? 0 : grant->boxes;
      ++in;
    }
    to[rank] = std::as_bytes(std::span(told[rank]).first(out));
    from[rank] = std::as_writable_bytes(std::span(heard[rank]).first(in));
  }
  group.exchange(to, from);
  std::vector<std::int64_t> all(2 * ranks);
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    // It tells first what it wants of this rank, then what it sends here.
    std::size_t i = 0;
    if (owe_[rank] > 0) all[rank] = heard[rank][i++];
    if (expect_[rank] > 0) all[ranks + rank] = heard[rank][i];
    if (all[rank] < 0 || all[ranks + rank] < 0 || all[ranks + rank] > expect_[rank]) {
      fail_protocol(static_cast<int>(rank));
    }
  }
  return all;
}

void Exchange::exchange_requests(Group& group, std::span<const std::int64_t> sizes) {
  std::vector<Bytes> heard(sizes.size());
  std::vector<std::span<const std::byte>> to(sizes.size());
  std::vector<std::span<std::byte>> from(sizes.size());
  for (const auto& [rank, message] : messages_) to[static_cast<std::size_t>(rank)] = message;
  for (std::size_t rank = 0; rank < sizes.size(); ++rank) {
    heard[rank].resize(static_cast<std::size_t>(sizes[rank]));
    from[rank] = heard[rank];
  }
  group.exchange(to, from);
  for (std::size_t rank = 0; rank < sizes.size(); ++rank) {
    for (WireReader batches(heard[rank]); !batches.at_end();) {
      const std::string batch = batches.text();
      RequestList list = read_requests(std::as_bytes(std::span(batch)), source_, unit_bytes_);
      std::vector<std::int64_t> bytes;
      for (const BoxRequest& box : list.boxes) bytes.push_back(box.bytes);
      outlet_.ask(static_cast<int>(rank), bytes);
      owed_[static_cast<int>(rank)].lists.push_back(std::move(list));
    }
  }
}

/// What goes out in the next round.
Exchange::Shipment Exchange::make_shipment() {
  Shipment shipment;
  shipment.grants = outlet_.next_round(unit_bytes_);
  std::int64_t end = 0;
  for (const Outlet::Grant& grant : shipment.grants) {
    Owed& owed = owed_[grant.rank];
    for (std::int64_t i = 0; i < grant.boxes; ++i) {
      shipment.boxes.push_back(owed.lists.front().boxes[owed.used++]);
      shipment.begins.push_back(end);
      end += shipment.boxes.back().bytes;
    }
    if (owed.used < owed.lists.front().boxes.size()) continue;
    shipment.lists.push_back(std::move(owed.lists.front()));
    owed.lists.pop_front();
    owed.used = 0;
  }
  shipment.memory = std::make_unique_for_overwrite<std::byte[]>(static_cast<std::size_t>(end));
  return shipment;
}

void Exchange::exchange_boxes(Group& group, const Shipment& sent, std::span<const std::int64_t> boxes) {
  std::vector<std::span<const std::byte>> to(boxes.size());
  std::vector<std::span<std::byte>> from(boxes.size());
  std::int64_t begin = 0;
  for (const Outlet::Grant& grant : sent.grants) {
    to[static_cast<std::size_t>(grant.rank)] = {sent.memory.get() + begin, static_cast<std::size_t>(grant.bytes)};
    begin += grant.bytes;
  }
  for (std::size_t rank = 0; rank < boxes.size(); ++rank) {
    if (boxes[rank] > 0) from[rank] = place_for(static_cast<int>(rank), static_cast<std::size_t>(boxes[rank]));
  }
  group.exchange(to, from);
  of_.progress.bytes_sent += begin;
  const std::scoped_lock lock(mutex_);
  for (const Outlet::Grant& grant : sent.grants) {
    owe_[static_cast<std::size_t>(grant.rank)] -= grant.boxes;
    to_send_ -= grant.boxes;
  }
  for (std::size_t rank = 0; rank < boxes.size(); ++rank) {
    if (boxes[rank] > 0) take_arrived(static_cast<int>(rank), boxes[rank]);
  }
}

/// The first batch that waits for boxes of that rank. \throws Error kPeer  none does
Exchange::Batch& Exchange::batch_for(int sender) {
  for (const std::unique_ptr<Batch>& batch : batches_) {
    const auto region = batch->regions.find(sender);
    if (region != batch->regions.end() && region->second.arrived < region->second.boxes.size()) return *batch;
  }
  fail_protocol(sender);
}

/// Where the next boxes of that rank go.
std::span<std::byte> Exchange::place_for(int sender, std::size_t boxes) {
  const std::scoped_lock lock(mutex_);
  const Region& region = batch_for(sender).regions.at(sender);
  if (boxes > region.boxes.size() - region.arrived) fail_protocol(sender);
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < boxes; ++i) bytes += region.boxes[region.arrived + i].second;
  return {region.data + region.arrived_bytes, static_cast<std::size_t>(bytes)};
}

/// Tiles that are complete now may be written.
void Exchange::take_arrived(int sender, std::int64_t boxes) {
  Batch& batch = batch_for(sender);
  Region& region = batch.regions.at(sender);
  for (std::int64_t i = 0; i < boxes; ++i) {
    const auto& [tile, bytes] = region.boxes[region.arrived++];
    region.arrived_bytes += bytes;
    if (--tile->missing != 0) continue;
    given_.emplace(tile->tile, std::pair(&batch, tile));
    ready_.push_back(tile);
  }
  expect_[static_cast<std::size_t>(sender)] -= boxes;
  to_receive_ -= boxes;
  batch.missing -= static_cast<std::size_t>(boxes);
  if (batch.missing == 0) intake_.receive();
}

}  // namespace shard
