#include "shardtorch/sharded_tensor/host_link.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <filesystem>
#include <random>

#include "libshard/core/error.h"
#include "libshard/ranks/wire.h"
#include "shardtorch/sharded_tensor/views.h"

namespace shard {

namespace {

// Indices of numbers in a header. From kParcels on there are two numbers per rank: its slot, and the number of its
// elements.
constexpr std::size_t kToken = 0, kRounds = 1, kSlotBytes = 2, kParcels = 3;
constexpr std::size_t kPage = 4096;
constexpr std::int64_t kSlotAlignment = 64;  // The size of a cache line, and a multiple of every element's size.

/// The namespaces of this process. Processes with the same ones can open each other's memory through /proc.
std::string neighbourhood() {
  std::error_code ignored;
  return host_identity() + " " + std::filesystem::read_symlink("/proc/self/ns/pid", ignored).string();
}

bool is_same_memory(const at::Tensor& a, const at::Tensor& b) {
  if (a.is_same(b)) return true;
  return a.defined() && b.defined() && a.has_storage() && b.has_storage() && a.storage().is_alias_of(b.storage()) &&
         a.storage_offset() == b.storage_offset() && a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() &&
         a.strides() == b.strides() && a.is_conj() == b.is_conj() && a.is_neg() == b.is_neg();
}

bool all_true(Group& group, bool own) {
  const std::array mine{static_cast<std::byte>(own)};
  const std::vector<Bytes> all = all_gather(group, mine);
  return std::ranges::all_of(all, [](const Bytes& each) { return each.front() != std::byte{0}; });
}

}  // namespace

HostLink::HostLink(int ranks)
    : header_bytes_(header_bytes(ranks)),
      segments_(static_cast<std::size_t>(ranks)),
      own_(std::make_unique<SharedMemory>(2 * (header_bytes_ + kHalfBytes))) {
  own_->reserve(0, 2 * header_bytes_);
  std::random_device random;
  reinterpret_cast<std::int64_t*>(own_->data())[kToken] = (static_cast<std::int64_t>(random()) << 31) ^ random();
}

std::size_t HostLink::header_bytes(int ranks) {
  const std::size_t bytes = (kParcels + 2 * static_cast<std::size_t>(ranks)) * sizeof(std::int64_t);
  return (bytes + kPage - 1) / kPage * kPage;
}

Bytes HostLink::address() const {
  WireWriter out;
  out.text(neighbourhood());
  out.text(own_->path());
  out.number(*reinterpret_cast<std::int64_t*>(own_->data()));
  return out.take();
}

bool HostLink::open_others(const std::vector<Bytes>& addresses, int own_rank) {
  segments_[static_cast<std::size_t>(own_rank)] = std::move(own_);
  for (std::size_t rank = 0; rank < addresses.size(); ++rank) {
    if (addresses[rank].empty()) return false;
    WireReader in(addresses[rank]);
    if (in.text() != neighbourhood()) return false;
    const std::string path = in.text();
    if (segments_[rank] == nullptr) {
      segments_[rank] = std::make_unique<SharedMemory>(path, 2 * (header_bytes_ + kHalfBytes));
    }
    if (header(rank)[kToken] != in.number()) return false;
  }
  return true;
}

/// Every step is agreed on, because the ranks must all use the link, or none.
std::unique_ptr<HostLink> HostLink::open(Group& group) {
  std::unique_ptr<HostLink> link;
  Bytes address;
  try {
    link.reset(new HostLink(group.size()));
    address = link->address();
  } catch (const Error&) {
    address.clear();  // The missing address informs the other ranks.
  }
  const std::vector<Bytes> addresses = all_gather(group, address);
  bool is_open = false;
  try {
    is_open = link != nullptr && link->open_others(addresses, group.rank());
  } catch (const Error&) {
    is_open = false;
  }
  if (!all_true(group, is_open)) return nullptr;
  return link;
}

std::span<std::int64_t> HostLink::header(std::size_t rank) const {
  std::byte* const begin = segments_[rank]->data() + static_cast<std::size_t>(moves_ % 2) * header_bytes_;
  return {reinterpret_cast<std::int64_t*>(begin), kParcels + 2 * segments_.size()};
}

std::size_t HostLink::half_begin(std::int64_t round) const {
  return 2 * header_bytes_ + static_cast<std::size_t>((rounds_ + round) % 2) * kHalfBytes;
}

void HostLink::reserve(std::size_t own_rank, std::int64_t round, std::size_t bytes) {
  std::size_t& reserved = reserved_[static_cast<std::size_t>((rounds_ + round) % 2)];
  if (bytes <= reserved) return;
  segments_[own_rank]->reserve(half_begin(round) + reserved, half_begin(round) + bytes);
  reserved = bytes;
}

HostMove::Stream::Stream(Tensors tensors) : tensors_(std::move(tensors)) {
  for (const at::Tensor& tensor : tensors_) elements_ += tensor.numel();
}

/// Pairs the next elements of the stream with the elements of a slot, view by view.
template <class Each>
void HostMove::Stream::next(const at::Tensor& slot, const Each& each) {
  std::int64_t position = 0;
  while (position < slot.numel() && index_ < tensors_.size()) {
    const at::Tensor& tensor = tensors_[index_];
    const std::int64_t count = std::min(slot.numel() - position, tensor.numel() - done_);
    for_each_pair(tensor, done_, count, slot.narrow(0, position, count), each);
    position += count;
    done_ += count;
    if (done_ == tensor.numel()) ++index_, done_ = 0;
  }
}

HostMove::HostMove(HostLink& link, int own_rank, std::vector<Tensors> to, std::vector<Tensors> from,
                   at::ScalarType travel_as)
    : link_(link), own_(static_cast<std::size_t>(own_rank)), travel_as_(travel_as) {
  const std::span<std::int64_t> header = link_.header(own_);
  for (std::size_t rank = 0; rank < to.size(); ++rank) {
    Stream stream(std::move(to[rank]));
    header[kParcels + 2 * rank + 1] = stream.elements();
    if (stream.elements() > 0) header[kParcels + 2 * rank] = slot_of(std::move(stream));
  }
  for (Tensors& tensors : from) incoming_.emplace_back(std::move(tensors));
  if (!outgoing_.empty()) set_slots();
  header[kRounds] = rounds_;
  header[kSlotBytes] = slot_bytes_;
  write(0);
}

/// Divides a half into equal slots, one per outgoing stream, and computes the rounds that the longest stream needs.
void HostMove::set_slots() {
  const auto width = static_cast<std::int64_t>(c10::elementSize(travel_as_));
  const std::int64_t most = std::ranges::max_element(outgoing_, {}, &Stream::elements)->elements();
  const std::int64_t share = static_cast<std::int64_t>(HostLink::kHalfBytes) / std::ssize(outgoing_);
  slot_bytes_ = std::min(share / kSlotAlignment, (most * width + kSlotAlignment - 1) / kSlotAlignment) * kSlotAlignment;
  const std::int64_t in_slot = slot_bytes_ / width;
  rounds_ = (most + in_slot - 1) / in_slot;
}

std::int64_t HostMove::slot_of(Stream stream) {
  const auto same = std::ranges::find_if(outgoing_, [&](const Stream& known) {
    return std::ranges::equal(known.tensors(), stream.tensors(), is_same_memory);
  });
  if (same != outgoing_.end()) return same - outgoing_.begin();
  outgoing_.push_back(std::move(stream));
  return std::ssize(outgoing_) - 1;
}

void HostMove::check_incoming() const {
  for (std::size_t rank = 0; rank < incoming_.size(); ++rank) {
    const std::int64_t taken = incoming_[rank].elements(), sent = link_.header(rank)[kParcels + 2 * own_ + 1];
    if (sent == taken) continue;
    throw Error(ErrorCode::kPeer,
                c10::str("rank ", rank, " sends a different number of elements from what this rank expects"))
        .expected(taken)
        .found(sent);
  }
}

at::Tensor HostMove::slot(std::size_t rank, std::size_t index, std::int64_t slot_bytes, std::int64_t round) const {
  const std::int64_t elements = slot_bytes / static_cast<std::int64_t>(c10::elementSize(travel_as_));
  std::byte* const half = link_.segments_[rank]->data() + link_.half_begin(round);
  return at::from_blob(half + static_cast<std::int64_t>(index) * slot_bytes, {elements}, at::TensorOptions(travel_as_));
}

void HostMove::write(std::int64_t round) {
  link_.reserve(own_, round, outgoing_.size() * static_cast<std::size_t>(slot_bytes_));
  for (std::size_t i = 0; i < outgoing_.size(); ++i) {
    outgoing_[i].next(slot(own_, i, slot_bytes_, round),
                      [](const at::Tensor& view, const at::Tensor& part) { part.copy_(view); });
  }
}

void HostMove::read(std::int64_t round) {
  for (std::size_t rank = 0; rank < incoming_.size(); ++rank) {
    if (incoming_[rank].elements() == 0) continue;
    const std::span<const std::int64_t> header = link_.header(rank);
    const auto index = static_cast<std::size_t>(header[kParcels + 2 * own_]);
    incoming_[rank].next(slot(rank, index, header[kSlotBytes], round),
                         [](const at::Tensor& view, const at::Tensor& part) { view.copy_(part); });
  }
}

void HostMove::run(Group& group) {
  check_incoming();
  std::int64_t rounds = 0;
  for (std::size_t rank = 0; rank < link_.segments_.size(); ++rank) {
    rounds = std::max(rounds, link_.header(rank)[kRounds]);
  }
  for (std::int64_t round = 0; round < rounds; ++round) {
    if (round > 0) group.barrier();
    if (round + 1 < rounds_) write(round + 1);
    read(round);
  }
  link_.rounds_ += rounds;
  ++link_.moves_;
}

void HostMove::finish(Group& group) {
  try {
    run(group);
  } catch (...) {
    group.abort();
    throw;
  }
}

}  // namespace shard
