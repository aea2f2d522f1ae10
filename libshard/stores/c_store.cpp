#include "libshard/stores/c_store.h"

#include <exception>

#include "libshard/stores/url_store.h"

namespace shard {

// ---- Requests and answers as bytes. The body of a request is passed beside them.

constexpr std::int64_t kActs = static_cast<std::int64_t>(ObjectAct::kRemove) + 1;
constexpr std::int64_t kConditions = static_cast<std::int64_t>(ObjectCondition::kSame) + 1;
constexpr std::int64_t kOutcomes = static_cast<std::int64_t>(ObjectOutcome::kCannot) + 1;

template <class Wire>
void pass(Wire& wire, Passed<Wire, ObjectRequest>& request) {
  wire.pass_below(request.act, kActs);
  wire.pass_below(request.condition, kConditions);
  wire.pass(request.url, request.upload, request.run, request.etag, request.from, request.number, request.crc32c,
            request.begin, request.end, request.attempt, request.is_reading, request.is_cleanup);
  pass_parts(wire, request.parts);
}

template <class Wire>
void pass(Wire& wire, Passed<Wire, ObjectAnswer>& answer) {
  wire.pass_below(answer.outcome, kOutcomes);
  wire.pass(answer.text, answer.etag, answer.has_checksums);
  pass_parts(wire, answer.parts);
  wire.list(answer.objects,
            [&](auto& object) { wire.pass(object.bytes, object.url, object.etag, object.run, object.upload); });
}

namespace {

const UrlFiles& store_at(void* address) { return *static_cast<const UrlFiles*>(address); }

const RandomReader& reader_at(void* address) { return *static_cast<const RandomReader*>(address); }

std::string text_of(ConstBytes bytes) { return std::string(as_text({bytes.data, bytes.count})); }

ConstBytes plain_text(const std::string& text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

CFileStatus plain_status(FileKind kind, std::int64_t bytes, const FileIdentity& identity) {
  return {static_cast<int>(kind), bytes, identity.device, identity.inode};
}

// ---- The plug-in's side.

bool serve_status(void* store, ConstBytes path, CFileStatus* status, const ErrorSink* errors) {
  return put_error(errors, [&] {
    const FileStatus found = store_at(store).status(text_of(path));
    *status = plain_status(found.kind, found.bytes, found.identity());
  });
}

bool serve_list(void* store, ConstBytes folder, const ByteSink* names, const ErrorSink* errors) {
  return put_error(errors, [&] {
    WireWriter writer;
    for (const std::string& name : store_at(store).list(text_of(folder))) writer.text(name);
    const Bytes bytes = writer.take();
    names->put(names->place, {bytes.data(), bytes.size()});
  });
}

bool serve_open(void* store, ConstBytes path, CFile* made, const ErrorSink* errors) {
  return put_error(errors, [&] {
    std::unique_ptr<RandomReader> file = store_at(store).open(text_of(path));
    const CFileStatus status = plain_status(FileKind::kFile, file->size(), file->identity());
    const int streams = file->streams_at_once();
    *made = {file.release(), status, streams};
  });
}

bool serve_read(void* file, const CRange* ranges, std::size_t count, const ErrorSink* errors) {
  return put_error(errors, [&] {
    std::vector<RangedRead> reads;
    for (const CRange& range : std::span(ranges, count)) {
      reads.push_back({range.offset_bytes, {range.out.data, range.out.count}});
    }
    reader_at(file).read_many(reads);
  });
}

bool serve_stream(void* file, std::int64_t offset_bytes, std::int64_t bytes, const CTaker* taker,
                  const ErrorSink* errors) {
  return put_error(errors, [&] {
    reader_at(file).stream(offset_bytes, bytes, [&](std::span<const std::byte> arrived) {
      const bool goes_on = taker->take(taker->place, {arrived.data(), arrived.size()});
      if (!goes_on) throw Error(ErrorCode::kInterrupted, "the reader ended the stream");
    });
  });
}

/// Errors are left to the read itself.
void serve_expect_read(void* file, std::int64_t offset_bytes, std::int64_t bytes) try {
  reader_at(file).expect_read(offset_bytes, bytes);
} catch (...) {
}

bool serve_ask(void* store, ConstBytes request, ConstBytes body, const ByteSink* answer, const ErrorSink* errors) {
  return put_error(errors, [&] {
    ObjectRequest asked = from_message<ObjectRequest>({request.data, request.count});
    asked.body = {body.data, body.count};
    const Bytes bytes = to_message(store_at(store).ask(asked));
    answer->put(answer->place, {bytes.data(), bytes.size()});
  });
}

constexpr StoreFunctions kServed{.status = serve_status,
                                 .list = serve_list,
                                 .open = serve_open,
                                 .read = serve_read,
                                 .stream = serve_stream,
                                 .expect_read = serve_expect_read,
                                 .ask = serve_ask,
                                 .destroy_file = serve_destroy<RandomReader>,
                                 .destroy_store = serve_destroy<UrlFiles>};

// ---- The program's side.

/// A taker of the program, whose exceptions must not pass through the plug-in.
struct Taking {
  const ByteTaker& take;
  std::exception_ptr failure{};

  static bool take_bytes(void* place, ConstBytes bytes) noexcept {
    Taking& taking = *static_cast<Taking*>(place);
    try {
      taking.take({bytes.data, bytes.count});
      return true;
    } catch (...) {
      taking.failure = std::current_exception();
      return false;
    }
  }
};

class ImportedFile final : public RandomReader {
 public:
  ImportedFile(const StoreFunctions& functions, const CFile& plain, const std::string& path)
      : functions_(functions), plain_(plain) {
    name_ = path;
  }

  void read_at(std::int64_t offset_bytes, std::span<std::byte> out) const override {
    const RangedRead range{offset_bytes, out};
    read_many(std::span(&range, 1));
  }
  void read_many(std::span<const RangedRead> ranges) const override {
    std::vector<CRange> plain;
    plain.reserve(ranges.size());
    for (const RangedRead& range : ranges) plain.push_back({range.offset_bytes, {range.out.data(), range.out.size()}});
    call(functions_.read, plain_.file, plain.data(), plain.size());
  }
  int streams_at_once() const override { return plain_.streams_at_once; }
  void stream(std::int64_t offset_bytes, std::int64_t bytes, const ByteTaker& take) const override {
    Taking taking{take};
    const CTaker taker{&taking, Taking::take_bytes};
    try {
      call(functions_.stream, plain_.file, offset_bytes, bytes, &taker);
    } catch (...) {
      if (taking.failure) std::rethrow_exception(taking.failure);
      throw;
    }
  }
  void expect_read(std::int64_t offset_bytes, std::int64_t bytes) const override {
    functions_.expect_read(plain_.file, offset_bytes, bytes);
  }
  std::int64_t size() const override { return plain_.status.bytes; }
  FileIdentity identity() const override { return {plain_.status.device, plain_.status.inode}; }
  int requests_at_once() const override { return kUrlRequestsAtOnce; }

 private:
  const StoreFunctions& functions_;
  const CFile plain_;
  const ImportedObject owned_{plain_.file, functions_.destroy_file};
};

class ImportedStore final : public UrlFiles {
 public:
  explicit ImportedStore(const CStore& plain) : plain_(plain) {}

  FileStatus status(const std::string& path) const override {
    CFileStatus found{};
    call(plain_.functions->status, plain_.store, plain_text(path), &found);
    FileStatus status;
    status.kind = static_cast<FileKind>(found.kind);
    status.bytes = found.bytes;
    status.device = found.device;
    status.inode = found.inode;
    return status;
  }
  std::vector<std::string> list(const std::string& folder) const override {
    Bytes bytes;
    const ByteSink sink = sink_into(bytes);
    call(plain_.functions->list, plain_.store, plain_text(folder), &sink);
    std::vector<std::string> names;
    for (WireReader reader(bytes); !reader.at_end();) names.push_back(reader.text());
    return names;
  }
  std::unique_ptr<RandomReader> open(const std::string& path) const override {
    CFile made{};
    call(plain_.functions->open, plain_.store, plain_text(path), &made);
    return std::make_unique<ImportedFile>(*plain_.functions, made, path);
  }
  ObjectAnswer ask(const ObjectRequest& request) const override {
    const Bytes asked = to_message(request);
    Bytes answer;
    const ByteSink sink = sink_into(answer);
    call(plain_.functions->ask, plain_.store, ConstBytes{asked.data(), asked.size()},
         ConstBytes{request.body.data(), request.body.size()}, &sink);
    return from_message<ObjectAnswer>(answer);
  }

 private:
  const CStore plain_;
  const ImportedObject owned_{plain_.store, plain_.functions->destroy_store};
};

}  // namespace

CStore to_c(std::unique_ptr<UrlFiles> store) { return {store.release(), &kServed}; }

std::unique_ptr<UrlFiles> from_c(const CStore& plain) { return std::make_unique<ImportedStore>(plain); }

}  // namespace shard
