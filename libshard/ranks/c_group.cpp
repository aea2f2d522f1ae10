#include "libshard/ranks/c_group.h"

#include <exception>
#include <string>
#include <utility>

#include "libshard/core/error.h"
#include "libshard/ranks/wire.h"

namespace shard {

namespace {

template <class To, class From>
std::vector<To> plain_pieces(std::span<const From> pieces) {
  std::vector<To> result;
  result.reserve(pieces.size());
  for (const From& piece : pieces) result.push_back({piece.data(), piece.size()});
  return result;
}

template <class To, class From>
std::vector<To> spans_of(std::span<const From> pieces) {
  std::vector<To> result;
  result.reserve(pieces.size());
  for (const From& piece : pieces) result.emplace_back(piece.data, piece.count);
  return result;
}

/// The providing side: a Group behind an address.
struct Served {
  explicit Served(Group& served) : group(served), backend(served.backend()) {}

  Group& group;
  std::unique_ptr<Group> owned;
  const std::string backend;
};

/// The group behind the address that the using side passes back.
Group& group_at(void* address) { return static_cast<Served*>(address)->group; }

bool serve_barrier(void* group, const ErrorSink* errors) {
  return put_error(errors, [&] { group_at(group).barrier(); });
}

bool serve_broadcast(void* group, MutableBytes data, int root, const ErrorSink* errors) {
  return put_error(errors, [&] { group_at(group).broadcast({data.data, data.count}, root); });
}

bool serve_all_gather(void* group, ConstBytes own, MutableBytes all, const ErrorSink* errors) {
  return put_error(errors, [&] { group_at(group).all_gather({own.data, own.count}, {all.data, all.count}); });
}

bool serve_exchange(void* group, const ConstBytes* to, const MutableBytes* from, const ErrorSink* errors) {
  return put_error(errors, [&] {
    const auto ranks = static_cast<std::size_t>(group_at(group).size());
    group_at(group).exchange(from_c(std::span(to, ranks)), from_c(std::span(from, ranks)));
  });
}

bool serve_waits_for(void* group, int* rank, std::int64_t* milliseconds) {
  const std::optional<Group::Wait> wait = group_at(group).waits_for();
  if (!wait) return false;
  *rank = wait->rank;
  *milliseconds = wait->lasts.count();
  return true;
}

void serve_set_timeout(void* group, std::int64_t milliseconds) {
  group_at(group).set_timeout(std::chrono::milliseconds(milliseconds));
}

void serve_abort(void* group) { group_at(group).abort(); }

constexpr GroupFunctions kServed{.barrier = serve_barrier,
                                 .broadcast = serve_broadcast,
                                 .all_gather = serve_all_gather,
                                 .exchange = serve_exchange,
                                 .waits_for = serve_waits_for,
                                 .set_timeout = serve_set_timeout,
                                 .abort = serve_abort,
                                 .destroy = serve_destroy<Served>};

/// The using side.
class ImportedGroup final : public Group {
 public:
  explicit ImportedGroup(const CGroup& imported) : plain_(imported) {}

  int rank() const override { return plain_.rank; }
  int size() const override { return plain_.size; }
  std::string_view backend() const override { return plain_.backend; }

  void barrier() override { call(functions().barrier, plain_.group); }
  void broadcast(std::span<std::byte> data, int root) override {
    call(functions().broadcast, plain_.group, MutableBytes{data.data(), data.size()}, root);
  }
  void all_gather(std::span<const std::byte> own, std::span<std::byte> all) override {
    call(functions().all_gather, plain_.group, ConstBytes{own.data(), own.size()},
         MutableBytes{all.data(), all.size()});
  }
  void exchange(std::span<const std::span<const std::byte>> to, std::span<const std::span<std::byte>> from) override {
    call(functions().exchange, plain_.group, to_c(to).data(), to_c(from).data());
  }

  std::optional<Wait> waits_for() const override {
    Wait wait;
    std::int64_t milliseconds = 0;
    if (!functions().waits_for(plain_.group, &wait.rank, &milliseconds)) return std::nullopt;
    wait.lasts = std::chrono::milliseconds(milliseconds);
    return wait;
  }

  void set_timeout(std::chrono::milliseconds timeout) override {
    functions().set_timeout(plain_.group, timeout.count());
  }

  void abort() noexcept override { functions().abort(plain_.group); }

 private:
  const GroupFunctions& functions() const { return *plain_.functions; }

  const CGroup plain_;
  const ImportedObject owned_{plain_.group, plain_.functions->destroy};
};

}  // namespace

bool put_error(const ErrorSink* errors, const std::function<void()>& body) noexcept {
  try {
    body();
    return true;
  } catch (...) {
    try {
      WireWriter writer;
      writer.error(as_error(std::current_exception()));
      const Bytes bytes = writer.take();
      errors->put(errors->place, {bytes.data(), bytes.size()});
    } catch (...) {
      errors->put(errors->place, {});
    }
    return false;
  }
}

ByteSink sink_into(Bytes& bytes) {
  return {&bytes, [](void* place, ConstBytes found) {
            Bytes& taken = *static_cast<Bytes*>(place);
            try {
              taken.assign(found.data, found.data + found.count);
            } catch (...) {
              taken.clear();
            }
          }};
}

void throw_error(const std::function<bool(const ErrorSink* errors)>& function) {
  Bytes bytes;
  const ErrorSink errors = sink_into(bytes);
  if (function(&errors)) return;
  if (bytes.empty()) throw Error(ErrorCode::kResource, "out of memory").because("in a call of a plug-in");
  throw WireReader(bytes).error();
}

std::vector<ConstBytes> to_c(std::span<const std::span<const std::byte>> pieces) {
  return plain_pieces<ConstBytes>(pieces);
}

std::vector<MutableBytes> to_c(std::span<const std::span<std::byte>> pieces) {
  return plain_pieces<MutableBytes>(pieces);
}

std::vector<std::span<const std::byte>> from_c(std::span<const ConstBytes> pieces) {
  return spans_of<std::span<const std::byte>>(pieces);
}

std::vector<std::span<std::byte>> from_c(std::span<const MutableBytes> pieces) {
  return spans_of<std::span<std::byte>>(pieces);
}

CGroup to_c(Group& group) {
  auto* const served = new Served(group);
  return {served, &kServed, group.rank(), group.size(), served->backend.c_str()};
}

CGroup to_c(std::unique_ptr<Group> group) {
  const CGroup served = to_c(*group);
  static_cast<Served*>(served.group)->owned = std::move(group);
  return served;
}

std::unique_ptr<Group> from_c(const CGroup& imported) { return std::make_unique<ImportedGroup>(imported); }

}  // namespace shard
