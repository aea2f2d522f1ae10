// Exchange: tiles that wait for other ranks' boxes, the rounds in which boxes are sent, and the work that fills them.
#include "libshard/job/exchange.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <thread>

#include "libshard/core/checked.h"
#include "libshard/core/error.h"
#include "libshard/exec/piece_reader.h"
#include "libshard/plan/order.h"

namespace shard {

namespace {

[[noreturn]] void refuse() {
  throw Error(ErrorCode::kPeer, "cannot send data to a rank: it requested data that the source does not have");
}

Dims read_dims(WireReader& from, Arena& arena, int count, std::int64_t least) {
  std::array<std::int64_t, kMaxDims> numbers;
  for (int d = 0; d < count; ++d) {
    numbers[static_cast<std::size_t>(d)] = from.number();
    if (numbers[static_cast<std::size_t>(d)] < least) refuse();
  }
  return arena.dims(std::span(numbers).first(static_cast<std::size_t>(count)));
}

/// Checks a request. All its numbers were checked to be at least 0 when it was parsed.
void check(const BoxRequest& request, const Catalog& source, std::int64_t limit_bytes) {
  const Piece& piece = request.piece;
  std::int64_t last = piece.first;
  for (int d = 0; d < piece.sizes.size(); ++d) {
    if (request.offsets[d] > piece.sizes[d] - request.sizes[d]) refuse();
    last = checked_add(last, checked_mul(piece.sizes[d] - 1, piece.strides[d]));
  }
  const Storage& storage = source.storages[piece.storage];
  // Small storages that are adjacent in a file can form one piece, which begins in the first one's storage. The limit
  // is therefore the end of the file.
  const std::int64_t bytes = storage.plain ? source.files[storage.file].bytes - storage.offset : storage.bytes;
  if (storage.offset < 0 || checked_mul(checked_add(last, 1), request.element_bytes) > bytes) refuse();
  if (request.bytes > limit_bytes) refuse();
}

/// The words that ranks exchange before each round. A rank that is not ready delays the round for all. The flags
/// announce the content of the round.
constexpr std::int64_t kNotReady = -1, kFinished = 0, kReady = 1, kHasRequests = 2, kHasBoxes = 4, kHasWaiting = 8;

[[noreturn]] void fail_protocol(int rank) {
  throw Error(ErrorCode::kPeer, fmt::format("cannot receive data from rank {}: this rank did not request it", rank));
}

constexpr int kMostPackers = 8;  ///< The buffers of all packers together use one unit of the memory.

}  // namespace

void write_request(WireWriter& to, const Piece& piece, const Box& box, std::int64_t element_bytes) {
  to.number(piece.storage);
  to.number(piece.first);
  to.number(element_bytes);
  to.number(box.dims);
  for (const std::int64_t size : piece.sizes) to.number(size);
  for (const std::int64_t stride : piece.strides) to.number(stride);
  for (int d = 0; d < box.dims; ++d) to.number(box.offset[static_cast<std::size_t>(d)] - piece.offsets[d]);
  for (int d = 0; d < box.dims; ++d) to.number(box.size[static_cast<std::size_t>(d)]);
}

RequestList read_requests(std::span<const std::byte> message, const Catalog& source, std::int64_t limit_bytes) {
  constexpr std::int64_t kLargestElement = 64;
  RequestList list;
  try {
    for (WireReader from(message); !from.at_end();) {
      BoxRequest& request = list.boxes.emplace_back();
      request.piece.storage = static_cast<std::uint32_t>(from.number_below(std::ssize(source.storages)));
      request.piece.first = from.number();
      request.element_bytes = from.number_below(kLargestElement + 1);
      if (request.piece.first < 0 || request.element_bytes < 1) refuse();
      const int dims = static_cast<int>(from.number_below(kMaxDims + 1));
      request.piece.offsets = list.arena->zeros(dims);
      request.piece.sizes = read_dims(from, *list.arena, dims, 1);
      request.piece.strides = read_dims(from, *list.arena, dims, 0);
      request.offsets = read_dims(from, *list.arena, dims, 0);
      request.sizes = read_dims(from, *list.arena, dims, 1);
      request.bytes = checked_mul(checked_numel(request.sizes), request.element_bytes);
      check(request, source, limit_bytes);
    }
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kPeer) throw;
    refuse();  // The numbers are too large to compute with.
  }
  return list;
}

std::vector<BoxNeed> needs_of(const Plan& plan, std::int64_t tile, const SenderOf& sender_of, int own) {
  const Unit& unit = plan.unit_of(tile);
  const std::span<const Piece> from = plan.from(unit);
  std::vector<BoxNeed> needs;
  for_each_need(plan, unit, tile, [&](std::uint32_t piece, const Box& box) {
    const int sender = sender_of(from[piece]);
    if (sender != own) needs.push_back({sender, box.numel() * element_bytes(unit.from)});
  });
  return needs;
}

void ExchangeBatch::add(const Plan& plan, std::int64_t tile, const SenderOf& sender_of, int own,
                        std::map<int, WireWriter>& requests) {
  const Unit& unit = plan.unit_of(tile);
  const std::span<const Piece> from = plan.from(unit);
  AwaitedTile& awaited = tiles_.emplace_back();
  awaited.tile = tile;
  for_each_need(plan, unit, tile, [&](std::uint32_t piece, const Box& box) {
    const int sender = sender_of(from[piece]);
    if (sender == own) return;
    const std::int64_t bytes = box.numel() * element_bytes(unit.from);
    awaited.boxes.push_back({piece, box.dims, sender, numbers_.size(), bytes});
    numbers_.insert(numbers_.end(), box.offsets().begin(), box.offsets().end());
    numbers_.insert(numbers_.end(), box.sizes().begin(), box.sizes().end());
    regions_[sender].bytes += bytes;
    write_request(requests[sender], from[piece], box, element_bytes(unit.from));
  });
  awaited.missing = awaited.boxes.size();
  missing_ += awaited.boxes.size();
  ++unwritten_;
}

std::int64_t ExchangeBatch::bytes() const {
  std::int64_t all = 0;
  for (const auto& [sender, region] : regions_) all += region.bytes;
  return all;
}

/// Gives each sender one region of the memory, in which its boxes are in the order of the requests. So the boxes of a
/// round arrive in one piece.
void ExchangeBatch::lay_out(PieceMemory memory) {
  memory_ = std::move(memory);
  std::byte* end = memory_.carried;
  std::map<int, std::byte*> next;
  for (auto& [sender, region] : regions_) {
    region.data = next[sender] = end;
    end += region.bytes;
  }
  for (AwaitedTile& tile : tiles_) {
    for (AwaitedTile::Box& box : tile.boxes) {
      box.data = next[box.sender];
      next[box.sender] += box.bytes;
      regions_[box.sender].boxes.emplace_back(&tile, box.bytes);
    }
  }
}

bool ExchangeBatch::awaits(int sender) const {
  const auto region = regions_.find(sender);
  return region != regions_.end() && region->second.arrived < region->second.boxes.size();
}

/// The memory of a sender's next boxes, which follow those that have arrived. Empty if the batch expects fewer boxes.
std::span<std::byte> ExchangeBatch::place_for(int sender, std::size_t boxes) {
  const Region& region = regions_.at(sender);
  if (boxes > region.boxes.size() - region.arrived) return {};
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < boxes; ++i) bytes += region.boxes[region.arrived + i].second;
  return {region.data + region.arrived_bytes, static_cast<std::size_t>(bytes)};
}

/// Counts boxes as arrived, and returns the tiles that now have all of theirs.
std::vector<AwaitedTile*> ExchangeBatch::arrive(int sender, std::size_t boxes) {
  Region& region = regions_.at(sender);
  std::vector<AwaitedTile*> complete;
  for (std::size_t i = 0; i < boxes; ++i) {
    const auto& [tile, bytes] = region.boxes[region.arrived++];
    region.arrived_bytes += bytes;
    if (--tile->missing == 0) complete.push_back(tile);
  }
  missing_ -= boxes;
  return complete;
}

ReceivedBox ExchangeBatch::received(const AwaitedTile::Box& box) const {
  const auto dims = static_cast<std::size_t>(box.dims);
  const std::span<const std::int64_t> numbers = std::span(numbers_).subspan(box.numbers, 2 * dims);
  return {numbers.first(dims), numbers.subspan(dims), box.data};
}

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

/// Counts the boxes that each rank will send to this one: those of all tiles that an earlier run did not write.
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

/// Packers send to other ranks for as long as those need data, even after this rank's own tiles are copied.
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

/// Tiles with all boxes come first, because they occupy memory. Tiles that need no other rank follow.
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
    // The worker first writes its collected data, so that it holds nothing back while it waits.
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
  if (given == given_.end()) return;  // The tile needed nothing from other ranks.
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

/// Reads and packs the boxes that are sent in the next round.
void Exchange::pack(const std::stop_token& stop) {
  PieceReader reader(source_, of_.reader, of_.source_checks, of_.progress, stop);
  std::vector<std::byte> staging(static_cast<std::size_t>(unit_bytes_ / kMostPackers));
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return is_over_ || must_end() || shipment_.taken < shipment_.boxes.size(); });
    if (is_over_ || must_end()) return;
    const std::size_t i = shipment_.taken++;
    const BoxRequest box = shipment_.boxes[i];  // The shipment remains valid until all of it is packed.
    const PieceMemory memory = shipment_.memory;
    const std::int64_t begin = shipment_.begins[i];
    lock.unlock();
    const Box wanted(box.offsets, box.sizes);
    Numbers strides;
    const BufferBox packed = row_major_box(wanted, memory.packed + begin, strides);
    reader.read(box.piece, wanted, static_cast<std::size_t>(box.element_bytes), std::span(&packed, 1), staging);
    of_.transport.seal(memory, begin, box.bytes);
    lock.lock();
    ++shipment_.packed;
    if (shipment_.is_packed() && step_ != nullptr) step_->wake();
  }
}

/// Exchanges the amounts that each rank will request from each other one, and the rounds in which they meet.
void Exchange::agree(Group& group) {
  std::vector<std::span<const std::byte>> to;
  std::vector<std::span<std::byte>> from;
  for (std::size_t rank = 0; rank < expect_.size(); ++rank) {
    const std::size_t count = rank == static_cast<std::size_t>(rank_) ? 0 : 1;
    to.push_back(std::as_bytes(std::span(expect_).subspan(rank, count)));
    from.push_back(std::as_writable_bytes(std::span(owe_).subspan(rank, count)));
  }
  group.exchange(to, from);
  const auto writers = std::ranges::count_if(owe_, [](std::int64_t boxes) { return boxes > 0; });
  Meetings meetings(rank_, group.size(), writers);
  const std::int64_t own = meetings.own_period();
  std::vector<std::int64_t> periods(expect_.size(), 1);
  for (std::size_t rank = 0; rank < expect_.size(); ++rank) {
    to[rank] = std::as_bytes(std::span(&own, owe_[rank] > 0 ? 1 : 0));
    from[rank] = std::as_writable_bytes(std::span(periods).subspan(rank, expect_[rank] > 0 ? 1 : 0));
  }
  group.exchange(to, from);
  for (std::size_t rank = 0; rank < periods.size(); ++rank) {
    if (periods[rank] < 1) fail_protocol(static_cast<int>(rank));
    meetings.set_period(static_cast<int>(rank), periods[rank]);
  }
  const std::scoped_lock lock(mutex_);
  to_send_ = std::accumulate(owe_.begin(), owe_.end(), std::int64_t{0});
  meetings_.emplace(meetings);
  changed_.notify_all();
}

/// All ranks first agree on the amounts. Then each word announces the content of the next round from this rank.
std::int64_t Exchange::word() {
  const std::scoped_lock lock(mutex_);
  if (!is_agreed()) return is_known_ ? kReady : kNotReady;
  if (is_finished()) return kFinished;
  if (!is_round_prepared_) prepare_round();
  if (!is_round_prepared_ || !shipment_.is_packed()) return kNotReady;
  return kReady | (requests_.empty() ? 0 : kHasRequests) | (shipment_.boxes.empty() ? 0 : kHasBoxes) |
         (outlet_.is_empty() ? 0 : kHasWaiting);
}

/// Opens the batches that this round requests, as far as memory allows.
void Exchange::prepare_round() {
  for (;;) {
    const auto from = tiles_.begin() + next_remote_;
    next_remote_ += std::find(from, tiles_.end(), Tile::kRemote) - from;
    if (next_remote_ == std::ssize(tiles_) || !intake_.wants_batch()) break;
    if (!intake_.has_room()) return;
    open_batch();
  }
  is_round_prepared_ = true;
}

/// Requests the next tiles in order, as many as fit in a batch.
void Exchange::open_batch() {
  auto batch = std::make_unique<ExchangeBatch>();
  std::map<int, WireWriter> requests;
  BatchLimit limit(unit_bytes_, static_cast<int>(expect_.size()));
  for (const std::int64_t end = std::ssize(tiles_); next_remote_ < end; ++next_remote_) {
    if (tiles_[static_cast<std::size_t>(next_remote_)] != Tile::kRemote) continue;
    if (!limit.takes(needs_of(of_.plan, next_remote_, sender_of_, rank_))) break;
    batch->add(of_.plan, next_remote_, sender_of_, rank_, requests);
  }
  batch->lay_out(of_.transport.memory_to_receive(batch->bytes()));
  // A round requests one or two batches.
  for (auto& [sender, writer] : requests) requests_[sender].text(as_text(writer.take()));
  intake_.open();
  batches_.push_back(std::move(batch));
}

/// One round: control words, requests, then boxes. Every rank takes part in each exchange that any rank announced.
bool Exchange::move(Group& group, std::span<const std::int64_t> words) {
  std::int64_t flags = 0;
  for (const std::int64_t word : words) {
    if (word == kNotReady) return false;
    flags |= word;
  }
  if (!is_agreed()) {
    agree(group);
    return true;
  }
  if ((flags & (kHasRequests | kHasBoxes | kHasWaiting)) == 0) return false;
  const std::vector<std::int64_t> controls = exchange_controls(group);
  const auto ranks = static_cast<std::size_t>(group.size());
  const std::span sizes = std::span(controls).first(ranks), boxes = std::span(controls).subspan(ranks);
  if ((flags & kHasRequests) != 0) exchange_requests(group, sizes);
  Shipment packed;
  {
    const std::scoped_lock lock(mutex_);
    packed = std::exchange(shipment_, make_shipment());  // Threads pack the next shipment while this one is sent.
    changed_.notify_all();
  }
  if ((flags & kHasBoxes) != 0) exchange_boxes(group, packed, boxes);
  const std::scoped_lock lock(mutex_);
  ++round_;
  is_round_prepared_ = false;
  changed_.notify_all();
  return true;
}

/// Whether this rank receives from rank `rank` in this round.
bool Exchange::asks(std::size_t rank) const {
  return expect_[rank] > 0 && meetings_->as_writer(round_, static_cast<int>(rank));
}

/// Whether this rank sends to rank `rank` in this round.
bool Exchange::sends(std::size_t rank) const {
  return owe_[rank] > 0 && meetings_->as_sender(round_, static_cast<int>(rank));
}

/// Exchanges counts with the ranks that still have boxes for this one, or need boxes from it: the bytes of requests
/// with senders, the number of boxes with receivers. \returns the counts that this rank received, by rank: first the
/// former, then the latter.
std::vector<std::int64_t> Exchange::exchange_controls(Group& group) {
  const auto ranks = static_cast<std::size_t>(group.size());
  messages_.clear();
  for (auto request = requests_.begin(); request != requests_.end();) {
    const bool was_asked = asks(static_cast<std::size_t>(request->first));
    if (was_asked) messages_[request->first] = request->second.take();
    request = was_asked ? requests_.erase(request) : std::next(request);
  }
  std::vector<std::array<std::int64_t, 2>> told(ranks), heard(ranks);
  std::vector<std::span<const std::byte>> to(ranks);
  std::vector<std::span<std::byte>> from(ranks);
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    std::size_t out = 0, in = 0;
    if (asks(rank)) {
      const auto asked = messages_.find(static_cast<int>(rank));
      told[rank][out++] = asked == messages_.end() ? 0 : std::ssize(asked->second);
      ++in;
    }
    if (sends(rank)) {
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
    // Each message first has the requests to this rank, then the boxes for it.
    std::size_t i = 0;
    if (sends(rank)) all[rank] = heard[rank][i++];
    if (asks(rank)) all[ranks + rank] = heard[rank][i];
    if (all[rank] < 0 || all[ranks + rank] < 0 || all[ranks + rank] > expect_[rank]) {
      fail_protocol(static_cast<int>(rank));
    }
  }
  return all;
}

/// Sends the requests of this round, and queues those that arrive, batch by batch.
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

/// Selects the boxes that are sent in the next round.
Exchange::Shipment Exchange::make_shipment() {
  Shipment shipment;
  shipment.grants =
      outlet_.next_round(unit_bytes_, [this](int rank) { return meetings_->as_sender(round_ + 1, rank); });
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
  shipment.memory = of_.transport.memory_to_send(end);
  return shipment;
}

/// Sends the packed shipment, and receives boxes directly into the memory of their batches.
void Exchange::exchange_boxes(Group& group, const Shipment& sent, std::span<const std::int64_t> boxes) {
  std::vector<std::span<const std::byte>> to(boxes.size());
  std::vector<std::span<std::byte>> from(boxes.size());
  std::int64_t begin = 0;
  for (const Outlet::Grant& grant : sent.grants) {
    to[static_cast<std::size_t>(grant.rank)] = {sent.memory.carried + begin, static_cast<std::size_t>(grant.bytes)};
    begin += grant.bytes;
  }
  for (std::size_t rank = 0; rank < boxes.size(); ++rank) {
    if (boxes[rank] > 0) from[rank] = place_for(static_cast<int>(rank), static_cast<std::size_t>(boxes[rank]));
  }
  of_.transport.exchange(group, to, from);
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

/// The first batch that waits for boxes from that rank. \throws Error kPeer  there is none
ExchangeBatch& Exchange::batch_for(int sender) {
  const auto batch = std::ranges::find_if(batches_, [&](const auto& each) { return each->awaits(sender); });
  if (batch == batches_.end()) fail_protocol(sender);
  return **batch;
}

/// The memory for the next boxes from that rank.
std::span<std::byte> Exchange::place_for(int sender, std::size_t boxes) {
  const std::scoped_lock lock(mutex_);
  const std::span<std::byte> place = batch_for(sender).place_for(sender, boxes);
  if (place.empty()) fail_protocol(sender);
  return place;
}

/// Records the arrival of boxes. Tiles that are now complete may be written.
void Exchange::take_arrived(int sender, std::int64_t boxes) {
  ExchangeBatch& batch = batch_for(sender);
  for (AwaitedTile* const tile : batch.arrive(sender, static_cast<std::size_t>(boxes))) {
    given_.emplace(tile->tile, std::pair(&batch, tile));
    ready_.push_back(tile);
  }
  expect_[static_cast<std::size_t>(sender)] -= boxes;
  to_receive_ -= boxes;
  if (batch.has_arrived()) intake_.receive();
}

}  // namespace shard
