#include "libshard/exec/device_worker.h"

#include <algorithm>
#include <cassert>
#include <cstring>

#include "libshard/core/checked.h"
#include "libshard/exec/runs.h"
#include "libshard/plan/grid.h"

namespace shard {

namespace {

constexpr std::int64_t kHead = 64;  // Bytes before the elements in pinned and raw memory: the count of overflows.

}  // namespace

DeviceShare device_share(const Plan& plan, std::int64_t max_memory_bytes, int threads) {
  DeviceShare share;
  for (const Unit& unit : plan.units) {
    const std::int64_t widest = std::max(element_bytes(unit.from), element_bytes(unit.to));
    share.slot_bytes = std::max(share.slot_bytes, checked_numel(unit.tile.span()) * widest);
  }
  share.staging_bytes = staging_bytes(max_memory_bytes / 4, 1);
  // A slot has one buffer in pinned memory and two on the device, and each worker has two slots.
  const std::int64_t pinned = 2 * (share.slot_bytes + kHead) + share.staging_bytes;
  const std::int64_t on_device = 2 * (2 * share.slot_bytes + kHead);
  const std::int64_t fit = std::min(max_memory_bytes / 2 / pinned, max_memory_bytes / on_device);
  share.workers = static_cast<int>(std::clamp<std::int64_t>(fit, 1, std::max(threads, 1)));
  return share;
}

DeviceWorker::DeviceWorker(const TileWork& work, TileFeed& feed, const DeviceShare& share)
    : work_(work),
      feed_(feed),
      share_(share),
      piece_reader_(work.source, work.reader, work.source_checks, work.progress, work.options.stop),
      writer_(work),
      staging_(static_cast<std::size_t>(share.staging_bytes)) {
  Device& device = *work.options.device;
  in_ = device.make_stream(), operations_ = device.make_stream(), out_ = device.make_stream();
}

void DeviceWorker::take_memory(Slot& slot) {
  if (slot.pinned != nullptr) return;
  Device& device = *work_.options.device;
  slot.raw = device.allocate(kHead + share_.slot_bytes);
  slot.permuted = device.allocate(std::max(share_.slot_bytes, kHead));
  slot.loaded = device.make_event(), slot.computed = device.make_event(), slot.done = device.make_event();
  slot.pinned = device.allocate_pinned(kHead + share_.slot_bytes);
}

DeviceWorker::~DeviceWorker() {
  try {
    for (DeviceStream* stream : {in_.get(), operations_.get(), out_.get()}) stream->synchronize();
  } catch (const Error&) {
    return;  // The device failed, which was reported already.
  }
}

bool DeviceWorker::takes(std::int64_t tile) const {
  const Unit& unit = work_.plan.unit_of(tile);
  return !unit.is_line || feed_.has_on_device(tile);
}

void DeviceWorker::begin(std::int64_t tile) {
  const Unit& unit = work_.plan.unit_of(tile);
  std::vector<Box> rests;
  work_.clones.for_each_rest(unit, tile_box(unit, tile - unit.first_tile),
                             [&](const Box& rest) { rests.push_back(rest); });
  for (std::size_t i = 0; i < rests.size(); ++i) begin(unit, rests[i], tile, i + 1 == rests.size());
  if (rests.empty()) feed_.done(tile);
}

void DeviceWorker::begin(const Unit& unit, const Box& box, std::int64_t tile, bool ends_tile) {
  Slot& slot = slots_[next_];
  // The slot's earlier tile must be written before its buffers are filled again.
  finish(slot);
  take_memory(slot);
  next_ = 1 - next_;
  slot.unit = &unit, slot.tile = tile, slot.ends_tile = ends_tile;
  slot.boxes.lay_out(work_.plan.to(unit), box);
  if (work_.options.log != nullptr) piece_reader_.set_record(&slot.read);
  std::memset(slot.pinned->data(), 0, kHead);
  std::int64_t bytes = 0;
  try {
    bytes = load(slot, box);
  } catch (Error& error) {
    name_tensor(error, work_, unit);
    throw;
  }
  // The operations run on a second stream, and the event makes them wait for the copy. Meanwhile the host continues
  // with the next tile.
  in_->copy_in(slot.raw->data(), slot.pinned->data(), kHead + bytes);
  in_->record(*slot.loaded);
  operations_->wait(*slot.loaded);
  compute(slot);
}

/// Reads everything that the tile needs, each box packed in its storage order. \returns the number of bytes in pinned
/// memory, after the head
std::int64_t DeviceWorker::load(Slot& slot, const Box& tile_part) {
  loaded_.clear();
  const Unit& unit = *slot.unit;
  const std::span<const Piece> from = work_.plan.from(unit);
  const std::int64_t width = element_bytes(unit.from);
  std::int64_t end = kHead;
  for_each_need(work_.plan, unit, tile_part, [&](std::uint32_t piece, const Box& box) {
    const auto dims = static_cast<std::size_t>(box.dims);
    const auto received = feed_.received(slot.tile, piece);
    Loaded& loaded = loaded_.emplace_back(Loaded{box, {}, slot.raw->data() + end});
    // A box that a different rank sent is row-major. If it is on the device already, it is used there without a copy.
    if (received) {
      loaded.box = Box(received->offsets, received->sizes);
      if (work_.options.log != nullptr) {
        slot.is_summed = sum_received(work_.source, from[piece], *received, width, slot.read.sources) && slot.is_summed;
      }
      row_major_strides(received->sizes, std::span(loaded.strides).first(dims));
      if (received->is_on_device) {
        loaded.data = received->data;
        return;
      }
    } else {
      pack(box.sizes(), from[piece].strides.span(), loaded.strides);
    }
    const std::int64_t bytes = loaded.box.numel() * width;
    assert(end + bytes <= slot.pinned->size());
    std::byte* const to = slot.pinned->data() + end;
    end += bytes;
    if (received) {
      std::memcpy(to, received->data, static_cast<std::size_t>(bytes));
      return;
    }
    const BufferBox packed{box.offsets(), box.sizes(), std::span(loaded.strides).first(dims), to};
    piece_reader_.read(from[piece], box, static_cast<std::size_t>(width), std::span(&packed, 1), staging_);
  });
  return end - kHead;
}

/// Permutes and casts the loaded boxes, and starts copying the result to pinned memory.
void DeviceWorker::compute(Slot& slot) {
  const Unit& unit = *slot.unit;
  const std::span<const Piece> to = work_.plan.to(unit);
  const std::int64_t width = element_bytes(unit.from);
  slot.boxes.place(slot.permuted->data(), width);
  for (const Loaded& loaded : loaded_) {
    // Finds the common part in the loaded box and in the target's box, and copies it with both sides' strides.
    const std::span steps = std::span(loaded.strides).first(static_cast<std::size_t>(loaded.box.dims));
    for (const BufferBox& box : slot.boxes.boxes_for(to, loaded.box)) {
      const Box common = intersect(loaded.box, box.box());
      if (common.empty()) continue;
      const std::int64_t in = distance(loaded.box.offset.data(), common.offset.data(), steps);
      const std::int64_t out = distance(box.offsets.data(), common.offset.data(), box.strides);
      operations_->strided_copy(common.sizes(), loaded.data + in * width, steps, box.data + out * width, box.strides,
                                static_cast<std::size_t>(width));
    }
  }
  const std::int64_t elements = slot.boxes.elements();
  const std::int64_t bytes = elements * element_bytes(unit.to);
  // `raw` is free again after the permutation, so it receives the cast elements.
  if (unit.from != unit.to) {
    const auto overflows = reinterpret_cast<std::int64_t*>(slot.raw->data());
    operations_->cast(unit.from, {slot.permuted->data(), static_cast<std::size_t>(elements * width)}, unit.to,
                      {slot.raw->data() + kHead, static_cast<std::size_t>(bytes)}, overflows);
  }
  operations_->record(*slot.computed);
  out_->wait(*slot.computed);
  if (unit.from != unit.to) {
    out_->copy_out(slot.pinned->data(), slot.raw->data(), kHead + bytes);
  } else {
    out_->copy_out(slot.pinned->data() + kHead, slot.permuted->data(), bytes);
  }
  out_->record(*slot.done);
}

void DeviceWorker::finish(Slot& slot) {
  if (slot.unit == nullptr) return;
  const Unit& unit = *std::exchange(slot.unit, nullptr);
  slot.done->synchronize();
  std::int64_t overflows = 0;
  std::memcpy(&overflows, slot.pinned->data(), sizeof overflows);
  work_.progress.cast_overflows += overflows;
  slot.boxes.place(slot.pinned->data() + kHead, element_bytes(unit.to));
  const std::span<const Piece> to = work_.plan.to(unit);
  for (const TileBoxes::Wanted& each : slot.boxes.wanted()) {
    writer_.write(unit, to[each.piece], slot.boxes.box(each), unit.to, {}, record_);
  }
  writer_.flush();
  record_.cast_overflows += overflows + slot.read.cast_overflows;
  record_.sources.insert(record_.sources.end(), slot.read.sources.begin(), slot.read.sources.end());
  slot.read = {};
  is_summed_ = std::exchange(slot.is_summed, true) && is_summed_;
  if (!slot.ends_tile) return;
  record_.tile = slot.tile;
  if (work_.options.log != nullptr && is_summed_) work_.options.log->add(std::move(record_));
  record_ = {};
  is_summed_ = true;
  feed_.done(slot.tile);
}

void DeviceWorker::finish() {
  finish(slots_[next_]);
  finish(slots_[1 - next_]);
}

}  // namespace shard
