#include <cstdint>
#include <string_view>
#include <vector>

#include "formats/dcp/metadata.h"
#include "formats/parts/pickle/opcodes.h"
#include "formats/parts/pickle/pickle.h"

namespace shard::dcp {
namespace {

constexpr std::string_view kModule = "torch.distributed.checkpoint.metadata";

/// Writes opcodes directly, because a tree of values for a million chunks would take many times the memory of the
/// metadata. All names are distinct, so their memo numbers are kept in a list, without a table of texts.
class MetadataDumper {
 public:
  MetadataDumper(const Metadata& metadata, const pickle::Sink& sink)
      : metadata_(metadata), out_({.protocol = 4, .sink = sink, .tensor = {}}) {}

  void run() {
    begin_object(kModule, "Metadata");
    out_.string("state_dict_metadata");
    state_dict();
    out_.string("planner_data");
    planner_data();
    out_.string("storage_data");
    storage_data();
    out_.string("storage_meta");
    storage_meta();
    out_.string("version");
    out_.string("1.0.0");
    if (!metadata_.lost_note.empty()) {
      out_.string(kLostAttribute);
      out_.string(metadata_.lost_note);
    }
    end_object();
    out_.finish();
  }

 private:
  void begin_object(std::string_view module, std::string_view name) {
    out_.global(module, name);
    out_.empty_tuple();
    out_.op(pickle::kOpNewObj);
    begin_dict();
  }
  void end_object() {
    end_dict();
    out_.op(pickle::kOpBuild);
  }
  void begin_dict() {
    out_.op(pickle::kOpEmptyDict);
    out_.mark();
  }
  void end_dict() { out_.op(pickle::kOpSetItems); }

  /// torch.Size((...)): REDUCE of the class with a tuple that contains one tuple of integers.
  void size(Dims dims) {
    out_.global("torch", "Size");
    out_.mark();
    for (const std::int64_t number : dims) out_.integer(number);
    out_.tuple();
    out_.op(pickle::kOpTuple1);
    out_.op(pickle::kOpReduce);
  }

  void state_dict() {
    begin_dict();
    names_.reserve(metadata_.tensors.size() + metadata_.objects.size());
    for (const TensorEntry& tensor : metadata_.tensors) {
      names_.push_back(out_.new_string(tensor.name));
      this->tensor(tensor);
    }
    for (const ObjectEntry& object : metadata_.objects) {
      names_.push_back(out_.new_string(object.name));
      out_.global(kModule, "BytesStorageMetadata");
      out_.empty_tuple();
      out_.op(pickle::kOpNewObj);
    }
    end_dict();
  }

  void tensor(const TensorEntry& tensor) {
    begin_object(kModule, "TensorStorageMetadata");
    out_.string("properties");
    properties(tensor);
    out_.string("size");
    size(tensor.size);
    out_.string("chunks");
    out_.op(pickle::kOpEmptyList);
    out_.mark();
    for (std::uint32_t i = 0; i < tensor.chunk_count; ++i) {
      const ChunkEntry& chunk = metadata_.chunks[tensor.first_chunk + i];
      begin_object(kModule, "ChunkStorageMetadata");
      out_.string("offsets");
      size(chunk.offsets);
      out_.string("sizes");
      size(chunk.sizes);
      end_object();
    }
    out_.op(pickle::kOpAppends);
    end_object();
  }

  /// TensorProperties by BUILD with the tuple (dtype, layout, requires_grad, memory format, pin_memory). The layout and
  /// the memory format are calls, because enums and layouts have no opcode.
  void properties(const TensorEntry& tensor) {
    out_.global(kModule, "TensorProperties");
    out_.empty_tuple();
    out_.op(pickle::kOpNewObj);
    out_.mark();
    out_.global("torch", dtype_name(tensor.dtype));
    out_.global("torch.serialization", "_get_layout");
    out_.string("torch.strided");
    out_.op(pickle::kOpTuple1);
    out_.op(pickle::kOpReduce);
    out_.boolean(tensor.requires_grad);
    out_.global(kModule, "_MEM_FORMAT_ENCODING");
    out_.integer(0);
    out_.op(pickle::kOpTuple1);
    out_.op(pickle::kOpReduce);
    out_.boolean(false);
    out_.tuple();
    out_.op(pickle::kOpBuild);
  }

  void planner_data() {
    if (!metadata_.has_paths) return out_.none();
    begin_dict();
    auto name = names_.begin();
    for (const TensorEntry& tensor : metadata_.tensors) path(*name++, tensor.name, tensor.path);
    for (const ObjectEntry& object : metadata_.objects) path(*name++, object.name, object.path);
    end_dict();
  }

  /// \param place  the name's number in the memo.
  void path(std::uint32_t place, std::string_view name, Path path) {
    out_.get(place);
    out_.mark();
    if (path.empty()) out_.get(place);
    for (const PathPart& part : path) {
      if (part.is_index) {
        out_.integer(part.index);
      } else if (part.key() == name) {
        out_.get(place);
      } else {
        out_.string(part.key());
      }
    }
    out_.tuple();
  }

  void storage_data() {
    begin_dict();
    for (std::size_t i = 0; i < metadata_.objects.size(); ++i) {
      begin_index(names_[metadata_.tensors.size() + i]);
      out_.none();
      end_object();
      place(metadata_.items[metadata_.objects[i].item]);
    }
    for (std::size_t t = 0; t < metadata_.tensors.size(); ++t) {
      const TensorEntry& tensor = metadata_.tensors[t];
      for (std::uint32_t i = 0; i < tensor.chunk_count; ++i) {
        const ChunkEntry& chunk = metadata_.chunks[tensor.first_chunk + i];
        begin_index(names_[t]);
        out_.integer(i);
        out_.string("offset");
        size(chunk.offsets);
        end_object();
        place(metadata_.items[chunk.item]);
      }
    }
    end_dict();
  }

  void begin_index(std::uint32_t name) {
    begin_object(kModule, "MetadataIndex");
    out_.string("fqn");
    out_.get(name);
    out_.string("index");
  }

  void place(const Item& item) {
    begin_object("torch.distributed.checkpoint.filesystem", "_StorageInfo");
    out_.string("relative_path");
    out_.string(metadata_.files[item.file]);
    out_.string("offset");
    out_.integer(item.offset);
    out_.string("length");
    out_.integer(item.length);
    end_object();
  }

  /// Omits checkpoint_id, which would reveal the folder, and save_id, because equal inputs must give equal files.
  void storage_meta() {
    begin_object(kModule, "StorageMeta");
    for (const std::string_view name : {"checkpoint_id", "save_id", "load_id"}) {
      out_.string(name);
      out_.none();
    }
    out_.string("modules");
    out_.op(pickle::kOpEmptyList);
    end_object();
  }

  const Metadata& metadata_;
  pickle::Dumper out_;
  std::vector<std::uint32_t> names_;  ///< Memo numbers of the tensors' names, then of the objects' names.
};

}  // namespace

void dump_metadata(const Metadata& metadata, const pickle::Sink& sink) { MetadataDumper(metadata, sink).run(); }

}  // namespace shard::dcp
