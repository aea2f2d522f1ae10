// Exchange: the rounds that the ranks make together, by the group's thread.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "libshard/core/error.h"
#include "libshard/job/exchange.h"

namespace shard {

namespace {

/// Words. A rank that is not ready keeps all from moving; flags say what the others bring.
constexpr std::int64_t kNotReady = -1, kFinished = 0, kReady = 1, kHasRequests = 2, kHasBoxes = 4, kHasWaiting = 8;

[[noreturn]] void fail_protocol(int rank) {
  throw Error(ErrorCode::kPeer, fmt::format("rank {} sent data that no rank requested", rank));
}

}  // namespace

/// Tells the ranks how much each will want of each, and in which rounds they meet.
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

std::int64_t Exchange::word() {
  const std::scoped_lock lock(mutex_);
  if (!is_agreed()) return is_known_ ? kReady : kNotReady;
  if (is_finished()) return kFinished;
  if (!is_round_prepared_) prepare_round();
  if (!is_round_prepared_ || !shipment_.is_packed()) return kNotReady;
  return kReady | (requests_.empty() ? 0 : kHasRequests) | (shipment_.boxes.empty() ? 0 : kHasBoxes) |
         (outlet_.is_empty() ? 0 : kHasWaiting);
}

/// Opens the batches that this round asks for, as far as there is memory for them.
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
  // A round asks for one batch or two.
  for (auto& [sender, writer] : requests) requests_[sender].text(as_text(writer.take()));
  intake_.open();
  batches_.push_back(std::move(batch));
}

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
    packed = std::exchange(shipment_, make_shipment());  // Threads pack the next one while this one travels.
    changed_.notify_all();
  }
  if ((flags & kHasBoxes) != 0) exchange_boxes(group, packed, boxes);
  const std::scoped_lock lock(mutex_);
  ++round_;
  is_round_prepared_ = false;
  changed_.notify_all();
  return true;
}

/// Whether this rank and that one, which sends here, speak in this round.
bool Exchange::asks(std::size_t rank) const {
  return expect_[rank] > 0 && meetings_->as_writer(round_, static_cast<int>(rank));
}

/// Whether this rank and that one, to which it sends, speak in this round.
bool Exchange::sends(std::size_t rank) const {
  return owe_[rank] > 0 && meetings_->as_sender(round_, static_cast<int>(rank));
}

/// Counts that ranks which still have boxes for each other tell: bytes of requests to those who send, boxes to those
/// who receive. \returns what this rank is told, by rank: the former, then the latter.
std::vector<std::int64_t> Exchange::exchange_controls(Group& group) {
  const auto ranks = static_cast<std::size_t>(group.size());
  messages_.clear();
  for (auto request = requests_.begin(); request != requests_.end();) {
    const bool is_told = asks(static_cast<std::size_t>(request->first));
    if (is_told) messages_[request->first] = request->second.take();
    request = is_told ? requests_.erase(request) : std::next(request);
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
    // It tells first what it wants of this rank, then what it sends here.
    std::size_t i = 0;
    if (sends(rank)) all[rank] = heard[rank][i++];
    if (asks(rank)) all[ranks + rank] = heard[rank][i];
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

/// The first batch that waits for boxes of that rank. \throws Error kPeer  none does
ExchangeBatch& Exchange::batch_for(int sender) {
  const auto batch = std::ranges::find_if(batches_, [&](const auto& each) { return each->awaits(sender); });
  if (batch == batches_.end()) fail_protocol(sender);
  return **batch;
}

/// Where the next boxes of that rank go.
std::span<std::byte> Exchange::place_for(int sender, std::size_t boxes) {
  const std::scoped_lock lock(mutex_);
  const std::span<std::byte> place = batch_for(sender).place_for(sender, boxes);
  if (place.empty()) fail_protocol(sender);
  return place;
}

/// Tiles that are complete now may be written.
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
