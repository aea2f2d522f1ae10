#include <fmt/format.h>

#include <algorithm>

#include "formats/parts/pickle/opcodes.h"
#include "formats/torch/tensor_pickle.h"
#include "libshard/core/error.h"

namespace shard::torch_save {

namespace {

/// Writes one tensor as torch/_tensor.py, _reduce_ex_internal, and torch/serialization.py, persistent_id, do.
class TensorWriter {
 public:
  TensorWriter(pickle::Dumper& dumper, const TensorView& view)
      : dumper_(dumper), view_(view), class_(dtype_row(view.dtype).torch_class) {}

  void write() {
    check_dtype();
    dumper_.global("torch._utils", class_.empty() ? "_rebuild_tensor_v3" : "_rebuild_tensor_v2");
    dumper_.mark();
    storage();
    dumper_.integer(view_.first);
    dims(view_.shape);
    dims(view_.strides);
    // torch cannot load a call of _rebuild_tensor_v3 with True. A Parameter's flag is in the call around it.
    dumper_.boolean(view_.requires_grad && !class_.empty());
    dumper_.global("collections", "OrderedDict");  // An empty dict of hooks.
    dumper_.empty_tuple();
    dumper_.op(pickle::kOpReduce);
    if (class_.empty()) dumper_.global("torch", dtype_name(view_.dtype));
    if (view_.conj || view_.neg) flags();
    dumper_.tuple();
    dumper_.op(pickle::kOpReduce);
  }

 private:
  void check_dtype() const {
    const bool is_quantized = class_.starts_with("Q");
    if (!is_quantized) return;
    throw Error(ErrorCode::kUnsupported,
                fmt::format("torch files cannot store plain tensors of dtype {}", dtype_name(view_.dtype)));
  }

  void storage() {
    dumper_.mark();
    dumper_.string("storage");
    class_.empty() ? dumper_.global("torch.storage", "UntypedStorage") : dumper_.global("torch", class_);
    dumper_.string(view_.key);
    dumper_.string(view_.location);
    dumper_.integer(class_.empty() ? view_.storage_bytes : view_.storage_bytes / element_bytes(view_.dtype));
    dumper_.tuple();
    dumper_.op(pickle::kOpBinPersid);
  }

  void dims(Dims numbers) {
    if (numbers.empty()) return dumper_.empty_tuple();
    dumper_.mark();
    for (const std::int64_t number : numbers) dumper_.integer(number);
    dumper_.tuple();
  }

  void flags() {
    dumper_.op(pickle::kOpEmptyDict);
    for (const auto& [name, is_set] : {std::pair("conj", view_.conj), std::pair("neg", view_.neg)}) {
      if (!is_set) continue;
      dumper_.string(name);
      dumper_.boolean(true);
      dumper_.op(pickle::kOpSetItem);
    }
  }

  pickle::Dumper& dumper_;
  const TensorView& view_;
  std::string_view class_;  ///< Empty for an untyped storage.
};

}  // namespace

void dump(const Value& root, const std::function<TensorView(std::int64_t tensor)>& view, const WriteInstead& instead,
          const pickle::Sink& sink) {
  pickle::DumpOptions options;
  options.protocol = 2;
  options.sink = sink;
  options.tensor = [&](pickle::Dumper& dumper, const Value& value) {
    if (instead && instead(dumper, value.number)) return;
    const TensorView tensor = view(value.number);
    TensorWriter(dumper, tensor).write();
  };
  pickle::Dumper dumper(std::move(options));
  dumper.value(root);
  dumper.finish();
}

std::string dump(const Value& root, const HashMap<const Value*, Value*>& behind_opaque) {
  pickle::DumpOptions options;
  options.behind_opaque = [&behind_opaque](const Value& value) -> const Value* {
    Value* const* behind = behind_opaque.find(&value);
    return behind != nullptr ? *behind : nullptr;
  };
  pickle::Dumper dumper(std::move(options));
  dumper.value(root);
  return dumper.finish();
}

std::string dump(const Value& root, const std::function<TensorView(std::int64_t tensor)>& view) {
  std::string bytes;
  dump(root, view, {}, [&bytes](std::string_view piece) { bytes += piece; });
  return bytes;
}

}  // namespace shard::torch_save
