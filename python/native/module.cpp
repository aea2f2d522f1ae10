// shardctl._native: the part of the library that the Python module needs. python/shardctl/_native.pyi has its types;
// its functions check their arguments only as far as the library does, and are for the package only.
#include <fmt/format.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <ostream>
#include <shared_mutex>
#include <span>
#include <sstream>
#include <stop_token>
#include <streambuf>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "apps/shardctl/app.h"
#include "formats/helper.h"
#include "formats/registry.h"
#include "libshard/catalog/chunk_place.h"
#include "libshard/catalog/layouts/placement.h"
#include "libshard/catalog/tree.h"
#include "libshard/core/error.h"
#include "libshard/io/local_disk.h"
#include "libshard/ranks/group.h"
#include "python/native/checkpoint.h"
#include "python/native/errors.h"
#include "python/native/lock.h"
#include "python/native/save.h"
#include "python/native/values.h"

namespace nb = nanobind;

namespace shard::python {
namespace {

constexpr std::int64_t kLeastInThread = 4 << 20;  // Shorter reads of local files end before a signal could be noticed.
constexpr std::size_t kNamesPerCheck = 1 << 16;

/// One entry of `read`: tensor, offsets, sizes, dtype, address and bytes of the memory.
using Read = std::tuple<std::uint32_t, std::vector<std::int64_t>, std::vector<std::int64_t>, std::string,
                        std::uintptr_t, std::int64_t>;

std::string_view view_of(const nb::object& bytes) {
  return {PyBytes_AsString(bytes.ptr()), static_cast<std::size_t>(PyBytes_Size(bytes.ptr()))};
}

/// The bytes of a path or an argument. It may not be UTF-8, so Python passes it encoded.
std::string text_of(const nb::bytes& encoded) {
  std::string text(encoded.c_str(), encoded.size());
  if (text.find('\0') != std::string::npos) throw nb::value_error("embedded null byte");
  return text;
}

std::vector<std::string> texts_of(const std::vector<nb::bytes>& encoded) {
  std::vector<std::string> texts;
  texts.reserve(encoded.size());
  for (const nb::bytes& each : encoded) texts.push_back(text_of(each));
  return texts;
}

nb::tuple tuple_of(std::span<const std::int64_t> numbers) {
  nb::list list;
  for (const std::int64_t number : numbers) list.append(number);
  return nb::tuple(list);
}

nb::object rank_or_none(std::int32_t rank) { return rank < 0 ? nb::object(nb::none()) : nb::object(nb::int_(rank)); }

DType dtype_named(const std::string& name) {
  if (const std::optional<DType> found = dtype_of_name(name)) return *found;
  throw Error(ErrorCode::kInvalidArgument, "unknown dtype '" + name + "'");
}

Checkpoint* open_source(const std::vector<nb::bytes>& paths, std::string from, const nb::bytes& map,
                        std::vector<std::string> set, const nb::bytes& hf_ref, const nb::bytes& layout,
                        const std::string& dequantize, const std::vector<std::pair<nb::bytes, double>>& lora,
                        bool opaque_globals, std::string endpoint_url, std::string region, bool anonymous,
                        int connections, int threads, std::int64_t max_memory) {
  SourceRequest request;
  request.paths = texts_of(paths);
  request.from = std::move(from);
  request.map = text_of(map);
  request.numbers = {std::move(set), text_of(hf_ref)};
  request.layout = text_of(layout);
  request.opaque_globals = opaque_globals;
  if (!dequantize.empty()) request.dequantize = dtype_named(dequantize);
  for (const auto& [path, weight] : lora) request.adapters.push_back({text_of(path), weight});
  const StoreRequest urls{.endpoint = std::move(endpoint_url),
                          .region = std::move(region),
                          .is_anonymous = anonymous,
                          .connections = connections};
  const ReadLimits limits{threads, max_memory};
  std::unique_ptr<Checkpoint> opened;
  run_interruptibly(
      [&](const std::stop_token& stop) { opened = std::make_unique<Checkpoint>(request, urls, limits, stop); });
  return opened.release();
}

/// Runs `work` without the GIL. If it may take long, it is in a thread, so that Ctrl-C stops it.
void run_without_lock(bool may_take_long, const std::function<void(const std::stop_token& stop)>& work) {
  if (may_take_long) return run_interruptibly(work);
  const WithoutLock released;
  work({});
}

nb::list keys(const Checkpoint& checkpoint) {
  nb::list names;
  std::string_view last;
  for (const Tensor& tensor : checkpoint.catalog().tensors) {
    if (!names.size() || tensor.name != last) names.append(str(tensor.name));
    last = tensor.name;
    if (names.size() % kNamesPerCheck == 0 && PyErr_CheckSignals() != 0) throw nb::python_error();
  }
  return names;
}

/// The bytes of a text that `str` returned.
std::string bytes_of(const nb::str& text) {
  for (const char* const errors : {"surrogatepass", "surrogateescape"}) {
    const nb::object encoded = nb::steal(PyUnicode_AsEncodedString(text.ptr(), "utf-8", errors));
    if (encoded.is_valid() && str(view_of(encoded)).equal(text)) return std::string(view_of(encoded));
    PyErr_Clear();
  }
  return {};
}

/// The indices of the tensors with that name, one for each rank that has its own.
std::pair<std::uint32_t, std::uint32_t> find(const Checkpoint& checkpoint, const nb::str& name) {
  const std::vector<Tensor>& tensors = checkpoint.catalog().tensors;
  const std::string bytes = bytes_of(name);
  const auto found = std::ranges::equal_range(tensors, std::string_view(bytes), {}, &Tensor::name);
  return {static_cast<std::uint32_t>(found.begin() - tensors.begin()),
          static_cast<std::uint32_t>(found.end() - tensors.begin())};
}

/// Name, dtype, elements and bytes of a block of the dtype, shape, rank, and the name of the tensor that it repeats.
nb::tuple tensor(const Checkpoint& checkpoint, std::uint32_t index) {
  const Catalog& catalog = checkpoint.catalog();
  const Tensor& found = catalog.tensors.at(index);
  const nb::object alias =
      found.alias_of == kNoIndex ? nb::object(nb::none()) : str(catalog.tensors[found.alias_of].name);
  const DTypeBlock block = dtype_block(found.dtype);
  return nb::make_tuple(str(found.name), str(dtype_name(found.dtype)), nb::make_tuple(block.elements, block.bytes),
                        tuple_of(found.shape), rank_or_none(found.rank), alias);
}

nb::object placements(const Checkpoint& checkpoint, std::uint32_t index) {
  const Catalog& catalog = checkpoint.catalog();
  const std::uint32_t sharding = catalog.tensors.at(index).sharding;
  if (sharding == kNoIndex) return nb::none();
  nb::list texts;
  for (const Placement& placement : catalog.shardings[sharding].placements) texts.append(str(to_string(placement)));
  return nb::tuple(texts);
}

/// Offsets, sizes, rank, file, and if the elements are plain: byte offset, bytes and strides.
nb::list chunks(Checkpoint& checkpoint, std::uint32_t index) {
  const Catalog& catalog = checkpoint.catalog();
  catalog.tensors.at(index);
  std::shared_lock<std::shared_mutex> held;
  run_without_lock(checkpoint.reads_urls(), [&](const std::stop_token& stop) {
    checkpoint.locate(std::span(&index, 1), stop);
    held = checkpoint.hold();  // A thread that waits for the mutex must not hold the GIL.
  });
  nb::list found;
  for (const Chunk& chunk : catalog.chunks_of(catalog.tensors.at(index))) {
    const ChunkPlace place = place_of(catalog, chunk);
    const auto if_known = [&](nb::object object) { return place.known ? std::move(object) : nb::object(nb::none()); };
    found.append(nb::make_tuple(tuple_of(chunk.offsets), tuple_of(chunk.sizes),
                                rank_or_none(catalog.stored_of(chunk).rank), str(catalog.file_of(chunk).path),
                                if_known(nb::int_(place.offset_bytes)), if_known(nb::int_(place.span_bytes)),
                                if_known(tuple_of(chunk.strides))));
  }
  return found;
}

/// A list of name and rank.
nb::list objects(Checkpoint& checkpoint) {
  const Catalog* catalog = nullptr;
  run_interruptibly([&](const std::stop_token& stop) { catalog = &checkpoint.with_objects(stop); });
  nb::list found;
  for (const Object& object : catalog->objects)
    found.append(nb::make_tuple(str(object.name), rank_or_none(object.rank)));
  return found;
}

ClassObject class_object(const nb::callable& of_class) {
  return [of_class](std::string_view type, const nb::object& parts) { return called(of_class, str(type), parts); };
}

/// The value of an object. \pre `objects` was called
nb::object object_value(const Checkpoint& checkpoint, std::uint32_t index, const nb::callable& of_class) {
  const Value* const value = checkpoint.catalog().objects.at(index).value;
  if (value == nullptr) return nb::none();
  const auto refuse = [](std::int64_t) -> nb::object {
    throw Error(ErrorCode::kUnsupported, "an object contains a tensor");
  };
  return PythonValues(refuse, class_object(of_class)).convert(*value);
}

/// The containers with all tensors and objects; of those that differ between ranks, only the ones of `rank`, and tuples
/// become lists.
nb::object tree(Checkpoint& checkpoint, std::optional<std::int32_t> rank, const nb::callable& of_tensor,
                const nb::callable& of_class, const nb::callable& of_size) {
  const Catalog* catalog = nullptr;
  run_interruptibly([&](const std::stop_token& stop) { catalog = &checkpoint.with_objects(stop); });
  PythonValues values([&](std::int64_t index) { return called(of_tensor, index); }, class_object(of_class),
                      [&](nb::object sizes) { return called(of_size, sizes); });
  const auto is_of_one_rank = [](const auto& each) { return each.rank >= 0; };
  const bool differ =
      std::ranges::any_of(catalog->tensors, is_of_one_rank) || std::ranges::any_of(catalog->objects, is_of_one_rank);
  if (catalog->root != nullptr && !differ) return values.convert(*catalog->root);
  Arena arena;
  std::vector<TreeEntry> entries;
  const auto is_there = [&](std::int32_t owner) { return owner < 0 || owner == rank; };
  for (std::uint32_t i = 0; i < catalog->tensors.size(); ++i) {
    const Tensor& each = catalog->tensors[i];
    if (is_there(each.rank)) entries.push_back({each.name, each.path, i, nullptr});
  }
  for (const Object& each : catalog->objects) {
    Value* const value = each.value == nullptr ? make_value(arena, ValueKind::kNone) : each.value;
    if (is_there(each.rank)) entries.push_back({each.name, each.path, kNoIndex, value});
  }
  return values.convert(*tree_of_paths(arena, entries));
}

std::int64_t read(Checkpoint& checkpoint, const std::vector<Read>& reads) {
  std::vector<WantedBox> wanted;
  wanted.reserve(reads.size());
  std::int64_t bytes = 0;
  for (const auto& [index, offsets, sizes, dtype, address, count] : reads) {
    if (offsets.size() != sizes.size() || offsets.size() > kMaxDims || count < 0) {
      throw Error(ErrorCode::kInvalidArgument, "cannot read a box: its offsets and sizes do not match");
    }
    wanted.push_back({index,
                      Box(offsets, sizes),
                      dtype_named(dtype),
                      {reinterpret_cast<std::byte*>(address), static_cast<std::size_t>(count)}});
    bytes += count;
  }
  std::int64_t done = 0;
  run_without_lock(bytes >= kLeastInThread || checkpoint.reads_urls(),
                   [&](const std::stop_token& stop) { done = checkpoint.read(wanted, stop); });
  return done;
}

nb::object view_of_memory(std::span<const std::byte> bytes) {
  // torch takes no memory that is read-only, though it does not write to the tensors that it sends.
  auto* data = reinterpret_cast<char*>(const_cast<std::byte*>(bytes.data()));
  static char nothing = 0;
  PyObject* view =
      PyMemoryView_FromMemory(bytes.empty() ? &nothing : data, static_cast<Py_ssize_t>(bytes.size()), PyBUF_WRITE);
  if (view == nullptr) throw nb::python_error();
  return nb::steal(view);
}

template <class Pieces>
nb::list views_of(const Pieces& pieces) {
  nb::list views;
  for (const auto& piece : pieces) views.append(view_of_memory(piece));
  return views;
}

std::string first_line_of(const nb::python_error& error) {
  const std::string text = nb::str(error.value()).c_str();
  return text.substr(0, text.find('\n'));
}

/// A group of ranks whose transport is a Python object, so that ranks of torch.distributed can run the library's jobs.
/// The object has the attributes `rank` and `size`, and the methods barrier(), broadcast(data, root),
/// all_gather(own, all), exchange(to, from), set_timeout(seconds) and abort(). Bytes are writable memoryviews, which
/// are valid during the call; `to` and `from` are lists of them, by rank. Methods may raise.
///
/// Threads: as Group. All functions but the constructor and the destructor take the GIL themselves.
class PythonGroup final : public Group {
 public:
  /// Holds the GIL, as does the destructor.
  explicit PythonGroup(nb::object ranks)
      : ranks_(std::move(ranks)),
        rank_(nb::cast<int>(ranks_.attr("rank"))),
        size_(nb::cast<int>(ranks_.attr("size"))) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string_view backend() const override { return "gloo"; }
  void barrier() override {
    call("a barrier", [&] { called(ranks_.attr("barrier")); });
  }
  void broadcast(std::span<std::byte> data, int root) override {
    call("a broadcast", [&] { called(ranks_.attr("broadcast"), view_of_memory(data), root); });
  }
  void all_gather(std::span<const std::byte> own, std::span<std::byte> all) override {
    call("an all-gather", [&] { called(ranks_.attr("all_gather"), view_of_memory(own), view_of_memory(all)); });
  }
  void exchange(std::span<const std::span<const std::byte>> to, std::span<const std::span<std::byte>> from) override {
    call("an exchange", [&] { called(ranks_.attr("exchange"), views_of(to), views_of(from)); });
  }
  void set_timeout(std::chrono::milliseconds timeout) override {
    const std::chrono::duration<double> seconds = timeout;
    call("setting a timeout", [&] { called(ranks_.attr("set_timeout"), seconds.count()); });
  }
  void abort() noexcept override {
    try {
      call("aborting", [&] { called(ranks_.attr("abort")); });
    } catch (const Error&) {
      return;  // The group is broken already.
    }
  }

 private:
  /// Runs `body` with the GIL. \throws Error kPeer  for an exception of Python
  void call(std::string_view doing, const std::function<void()>& body) const {
    const WithLock held;
    try {
      body();
    } catch (const nb::python_error& error) {
      throw Error(ErrorCode::kPeer, fmt::format("a rank died or does not respond, in {}", doing))
          .because(first_line_of(error));
    }
  }

  nb::object ranks_;
  int rank_, size_;
};

/// A box of a tensor to save: offsets, sizes, address and bytes of the memory.
using SavedBox = std::tuple<std::vector<std::int64_t>, std::vector<std::int64_t>, std::uintptr_t, std::int64_t>;
/// A DTensor's sharding: names and sizes of the mesh's axes, its ranks, and the placements as texts.
using SavedSharding = std::tuple<std::vector<std::string>, std::vector<std::int64_t>, std::vector<std::int64_t>,
                                 std::vector<std::string>>;
/// One tensor to save: dtype, shape, whether it is sharded, whether it requires a gradient, device, sharding, boxes.
using SavedTensor = std::tuple<std::string, std::vector<std::int64_t>, bool, bool, std::string,
                               std::optional<SavedSharding>, std::vector<SavedBox>>;

std::optional<Sharding> sharding_of(const std::optional<SavedSharding>& given) {
  if (!given) return std::nullopt;
  const auto& [names, sizes, ranks, placements] = *given;
  Sharding sharding;
  for (std::size_t i = 0; i < sizes.size(); ++i) sharding.mesh.push_back({names.at(i), sizes[i]});
  for (const std::string& text : placements) sharding.placements.push_back(parse_placement(text));
  if (!std::ranges::is_sorted(ranks)) sharding.ranks = ranks;
  return sharding;
}

void add_saved(const SavedTensor& given, HeldState& state) {
  const auto& [dtype, shape, is_sharded, requires_grad, location, sharding, boxes] = given;
  checkpoint::TensorInfo info{.dtype = dtype_named(dtype),
                              .requires_grad = requires_grad,
                              .is_sharded = is_sharded,
                              .shape = shape,
                              .location = location,
                              .boxes = {},
                              .sharding = sharding_of(sharding)};
  state.memory.emplace_back();
  for (const auto& [offsets, sizes, address, bytes] : boxes) {
    info.boxes.push_back({offsets, sizes});
    state.memory.back().emplace_back(reinterpret_cast<const std::byte*>(address), static_cast<std::size_t>(bytes));
  }
  state.tensors.push_back(std::move(info));
}

std::vector<std::string> save_state(const nb::bytes& tree, const std::vector<SavedTensor>& tensors,
                                    const nb::bytes& path, std::string to, const Checkpoint* like,
                                    const nb::object& ranks, bool force, bool sync, bool manifest, bool numbered_lists,
                                    int threads, std::int64_t max_memory) {
  HeldState state;
  state.tree = view_of(tree);
  for (const SavedTensor& tensor : tensors) add_saved(tensor, state);
  const SaveRequest request{.path = text_of(path),
                            .to = std::move(to),
                            .like = like == nullptr ? nullptr : &like->catalog(),
                            .force = force,
                            .sync = sync,
                            .manifest = manifest,
                            .numbered_lists = numbered_lists,
                            .threads = threads,
                            .max_memory_bytes = max_memory};
  std::optional<PythonGroup> group;
  if (!ranks.is_none()) group.emplace(ranks);
  Group& used = group ? *group : solo_group();
  std::vector<std::string> warnings;
  std::function<void()> check_interrupt;
  if (group) check_interrupt = [&] { called(ranks.attr("check_interrupt")); };
  run_interruptibly([&](const std::stop_token& stop) { warnings = save(state, request, used, stop); }, check_interrupt);
  return warnings;
}

/// The shape of a DTensor's local tensor, and its boxes: offsets and sizes in the whole, offsets in the local tensor.
nb::tuple local_part_of(const std::vector<std::int64_t>& shape, const std::vector<std::int64_t>& mesh,
                        const std::vector<std::string>& placements, std::int64_t index) {
  const RankPiece part = local_part(shape, mesh, placements, index);
  nb::list boxes;
  for (std::size_t i = 0; i < part.boxes.size(); ++i) {
    const Box& box = part.boxes[i];
    boxes.append(nb::make_tuple(tuple_of(box.offsets()), tuple_of(box.sizes()), tuple_of(part.local_offsets[i])));
  }
  return nb::make_tuple(tuple_of(part.local_sizes), boxes);
}

/// The address of a buffer. The memoryview keeps the memory in its place.
std::uintptr_t address_of(const nb::object& memory) {
  Py_buffer buffer;
  if (PyObject_GetBuffer(memory.ptr(), &buffer, PyBUF_CONTIG) != 0) throw nb::python_error();
  const auto address = reinterpret_cast<std::uintptr_t>(buffer.buf);
  PyBuffer_Release(&buffer);
  return address;
}

std::optional<std::string> environment(const std::string& name) {
  if (name == "SHARDCTL_LAUNCHER") return "none";
  const char* value = std::getenv(name.c_str());
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

/// A stream buffer whose lines another thread takes while they are written. Threads: any.
class LineBuffer final : public std::streambuf {
 public:
  /// Removes and returns the complete lines, without their ends.
  std::deque<std::string> take() {
    const std::scoped_lock lock(mutex_);
    return std::exchange(lines_, {});
  }
  /// Does the same with an incomplete last line.
  std::deque<std::string> take_all() {
    std::deque<std::string> lines = take();
    if (!last_.empty()) lines.push_back(std::exchange(last_, {}));
    return lines;
  }

 protected:
  int_type overflow(int_type c) override {
    if (traits_type::eq_int_type(c, traits_type::eof())) return traits_type::not_eof(c);
    const char byte = traits_type::to_char_type(c);
    add({&byte, 1});
    return c;
  }
  std::streamsize xsputn(const char* data, std::streamsize bytes) override {
    add({data, static_cast<std::size_t>(bytes)});
    return bytes;
  }

 private:
  void add(std::string_view text) {
    const std::scoped_lock lock(mutex_);
    for (std::size_t end = text.find('\n'); end != std::string_view::npos; end = text.find('\n')) {
      lines_.push_back(std::exchange(last_, {}).append(text.substr(0, end)));
      text.remove_prefix(end + 1);
    }
    last_ += text;
  }

  std::mutex mutex_;
  std::deque<std::string> lines_;
  std::string last_;
};

struct VerbResult {
  int code = 0;     ///< The exit code.
  std::string out;  ///< Standard output.
};

/// Runs a command line (without the program's name) as a job of one process, without the launcher's variables. Neither
/// signals nor standard streams of this process are used or changed. `err` receives the standard error.
/// Threads: any. A requested stop ends the run as a signal would, with exit code 130.
VerbResult run_verb(const std::vector<std::string>& arguments, LineBuffer& err, const std::stop_token& stop) {
  std::ostringstream out;
  std::ostream errors(&err);
  app::Session session{.fs = posix_disk(),
                       .out = out,
                       .err = errors,
                       .env = environment,
                       .stop = stop,
                       .stop_signal = [&stop] { return stop.stop_requested() ? SIGINT : 0; },
                       .end_at_once = {}};
  const int code = app::run(arguments, session);
  return {code, std::move(out).str()};
}

/// Runs a command line. Returns its exit code and standard output; `on_line` receives the lines of standard error.
nb::tuple run_command(const std::vector<nb::bytes>& encoded, const nb::callable& on_line) {
  const auto decoded = [](std::string_view text) {
    return nb::steal(PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace"));
  };
  const auto pass_on = [&](const std::deque<std::string>& lines) {
    for (const std::string& line : lines) called(on_line, decoded(line));
  };
  const std::vector<std::string> arguments = texts_of(encoded);
  LineBuffer err;
  VerbResult result;
  run_interruptibly([&](const std::stop_token& stop) { result = run_verb(arguments, err, stop); },
                    [&] { pass_on(err.take()); });
  pass_on(err.take_all());
  return nb::make_tuple(result.code, decoded(result.out));
}

nb::dict metadata(const Checkpoint& checkpoint) {
  nb::dict texts;
  for (const auto& [key, value] : checkpoint.catalog().metadata) texts[str(key)] = str(value);
  return texts;
}

nb::list warnings(const Checkpoint& checkpoint) {
  nb::list texts;
  for (const std::string& warning : checkpoint.catalog().warnings) texts.append(str(warning));
  return texts;
}

void define(nb::module_& native) {
  using nb::arg;
  // A process may end while one of its threads still has an open checkpoint. That is not a leak.
  nb::set_leak_warnings(false);
  translate_errors();
  nb::class_<Checkpoint>(native, "Checkpoint")
      .def_prop_ro("format", [](const Checkpoint& self) { return str(self.catalog().format); })
      .def_prop_ro("world_size", [](const Checkpoint& self) { return self.catalog().world_size; })
      .def_prop_ro("tensor_count", [](const Checkpoint& self) { return self.catalog().tensors.size(); })
      .def("metadata", &metadata)
      .def("warnings", &warnings)
      .def("keys", &keys)
      .def("find", &find, arg("name"))
      .def("tensor", &tensor, arg("index"))
      .def("placements", &placements, arg("index"))
      .def("chunks", &chunks, arg("index"))
      .def("objects", &objects)
      .def("object_value", &object_value, arg("index"), arg("of_class"))
      .def("tree", &tree, arg("rank").none(), arg("of_tensor"), arg("of_class"), arg("of_size"))
      .def("read", &read, arg("reads"));
  native.def("open", &open_source, arg("paths"), arg("format"), arg("map"), arg("set"), arg("hf_ref"), arg("layout"),
             arg("dequantize"), arg("lora"), arg("opaque_globals"), arg("endpoint_url"), arg("region"),
             arg("anonymous"), arg("connections"), arg("threads"), arg("max_memory"), nb::rv_policy::take_ownership);
  native.def("save", &save_state, arg("tree"), arg("tensors"), arg("path"), arg("to"), arg("like").none(),
             arg("ranks").none(), arg("force"), arg("sync"), arg("manifest"), arg("numbered_lists"), arg("threads"),
             arg("max_memory"));
  native.def(
      "unknown_class", [](const nb::bytes& pickle) { return unknown_class(view_of(pickle)); }, arg("pickle"));
  native.def("local_part", &local_part_of, arg("shape"), arg("mesh"), arg("placements"), arg("index"));
  native.def(
      "format_of_suffix", [](const nb::bytes& path) { return str(format_of_suffix(text_of(path))); }, arg("path"));
  native.def("run", &run_command, arg("arguments"), arg("on_line"));
  native.def(
      "set_program", [](const nb::bytes& path) { set_helper_program(text_of(path)); }, arg("path"));
  native.def("address_of", &address_of, arg("memory"));
}

}  // namespace
}  // namespace shard::python

NB_MODULE(_native, native) { shard::python::define(native); }
