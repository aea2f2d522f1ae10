#include <algorithm>
#include <cassert>

#include "formats/parts/pickle/dumper.h"
#include "libshard/core/error.h"

namespace shard::pickle {

void Dumper::Impl::end_run() {
  if (recording == nullptr || run_begin == out.size()) return;
  recording->bytes.append(out, run_begin);
  note(Recording::Step::kBytes, static_cast<std::uint32_t>(recording->bytes.size()));
}

void Dumper::Impl::note(Recording::Step::Kind kind, std::uint32_t number) {
  recording->steps.push_back({kind, number});
  run_begin = out.size();
}

void Dumper::Impl::note_put(std::uint32_t index) {
  if (recording == nullptr) return;
  puts.push_back(index);
  note(Recording::Step::kPut, 0);
}

void Dumper::Impl::note_get(std::uint32_t index) {
  if (recording == nullptr) return;
  if (index < recorded_from) return note(Recording::Step::kGet, index);
  const auto own = std::ranges::lower_bound(puts, index);
  assert(own != puts.end() && *own == index);
  note(Recording::Step::kGetOwn, static_cast<std::uint32_t>(own - puts.begin()));
}

void Dumper::Impl::tensor(const Value& value) {
  if (!options.tensor) {
    throw Error(ErrorCode::kUnsupported, "cannot write a tensor where only plain values can be written");
  }
  end_run();
  Recording* const recorded = std::exchange(recording, nullptr);  // A replay writes its own tensors.
  options.tensor(*self, value);
  remember(value);
  recording = recorded;
  if (recording != nullptr) note(Recording::Step::kTensor, 0);
}

Recording Dumper::record(const Value& value) {
  Recording made;
  impl_->recording = &made;
  impl_->run_begin = impl_->out.size();
  impl_->recorded_from = impl_->memo_size;
  impl_->puts.clear();
  impl_->value(value);
  impl_->end_run();
  impl_->recording = nullptr;
  return made;
}

void Dumper::replay(const Recording& recording, std::span<const Value* const> tensors) {
  Impl& to = *impl_;
  to.puts.clear();
  std::size_t begin = 0, next = 0;
  for (const auto& [kind, number] : recording.steps) {
    switch (kind) {
      case Recording::Step::kBytes:
        to.out.append(recording.bytes, begin, number - begin);
        begin = number;
        break;
      case Recording::Step::kPut:
        to.puts.push_back(to.memoize());
        break;
      case Recording::Step::kGet:
        to.get(number);
        break;
      case Recording::Step::kGetOwn:
        to.get(to.puts[number]);
        break;
      case Recording::Step::kTensor:
        to.value(*tensors[next++]);
        break;
    }
  }
}

}  // namespace shard::pickle
