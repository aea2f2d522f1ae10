#include "shardtorch/sharded_tensor/ops.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <sstream>
#include <utility>

#include "shardtorch/errors.h"
#include "shardtorch/sharded_tensor/builtin_ops.h"
#include "shardtorch/sharded_tensor/sharded_tensor_impl.h"

namespace shard {
namespace {

/// "linear" for "aten::linear".
std::string_view name_of(std::string_view name) {
  constexpr std::string_view kTorch = "aten::";
  if (name.starts_with(kTorch)) name.remove_prefix(kTorch.size());
  return name;
}

using Handler = std::shared_ptr<const ShardedOp>;
using TableAndOp = std::pair<std::string, std::string>;

/// The registered handlers. The last one registered for an op applies.
class OpTables {
 public:
  void add(const TableAndOp& key, const Handler& handler) {
    const std::lock_guard lock(mutex_);
    handlers_[key].push_back(handler);
  }

  void remove(const TableAndOp& key, const Handler& handler) {
    const std::lock_guard lock(mutex_);
    std::erase(handlers_[key], handler);
  }

  /// The handler, or null. It outlives its registration while it runs.
  Handler find(std::string_view table, std::string_view op) const {
    const std::lock_guard lock(mutex_);
    const auto found = handlers_.find(TableAndOp(table, op));
    return found == handlers_.end() || found->second.empty() ? nullptr : found->second.back();
  }

 private:
  mutable std::mutex mutex_;
  std::map<TableAndOp, std::vector<Handler>> handlers_;
};

/// Shared with registrations, because these may be static objects of the program that are destroyed later than this.
const std::shared_ptr<OpTables>& op_tables() {
  static const auto tables = std::make_shared<OpTables>();
  return tables;
}

/// Names for which ops can be registered: those of torch, and those that the program declared.
class KnownNames {
 public:
  void declare_op(std::string op) {
    const std::lock_guard lock(mutex_);
    ops_.insert(std::move(op));
  }
  void declare_class(std::string name) {
    const std::lock_guard lock(mutex_);
    classes_.insert(std::move(name));
  }
  bool has_class(const std::string& name) const {
    const std::lock_guard lock(mutex_);
    return classes_.contains(name);
  }
  /// Libraries that are loaded later add operators, so a missing name is searched again.
  bool has_op(const std::string& op) {
    const std::lock_guard lock(mutex_);
    if (ops_.contains(op)) return true;
    for (const c10::OperatorName& known : c10::Dispatcher::singleton().getAllOpNames()) {
      ops_.emplace(name_of(known.name));
    }
    return ops_.contains(op);
  }

 private:
  mutable std::mutex mutex_;
  std::set<std::string> ops_;
  std::set<std::string> classes_{"ChunkShardingSpec", "EnumerableShardingSpec"};
};

KnownNames& known_names() {
  static KnownNames names;
  return names;
}

/// Also visits the elements of lists, tuples and dicts, at any depth, in order.
void append_sharded_tensors(const c10::IValue& value, std::vector<ShardedTensor>& tensors) {
  if (value.isTensor()) {
    if (auto tensor = ShardedTensor::of(value.toTensor()); tensor.defined()) tensors.push_back(std::move(tensor));
  } else if (value.isList()) {
    for (const auto& element : value.toListRef()) append_sharded_tensors(element, tensors);
  } else if (value.isTuple()) {
    for (const auto& element : value.toTupleRef().elements()) append_sharded_tensors(element, tensors);
  } else if (value.isGenericDict()) {
    for (const auto& entry : value.toGenericDict()) append_sharded_tensors(entry.value(), tensors);
  }
}

std::vector<ShardedTensor> sharded_tensors(at::ArrayRef<c10::IValue> args) {
  std::vector<ShardedTensor> tensors;
  for (const auto& arg : args) append_sharded_tensors(arg, tensors);
  return tensors;
}

/// Describes tensors by type, not by elements, because an IValue's own text would run operators on a ShardedTensor.
void print(std::ostream& out, const c10::IValue& value);

void print_tensor(std::ostream& out, const at::Tensor& tensor) {
  if (!tensor.defined()) {
    out << "None";
  } else {
    out << (ShardedTensor::of(tensor).defined() ? "ShardedTensor" : "Tensor") << "(size=" << tensor.sizes()
        << ", dtype=" << tensor.scalar_type() << ')';
  }
}

template <class Values>
void print_values(std::ostream& out, const Values& values) {
  const char* separator = "";
  for (const auto& value : values) {
    out << std::exchange(separator, ", ");
    print(out, value);
  }
}

void print_dict(std::ostream& out, const c10::Dict<c10::IValue, c10::IValue>& dict) {
  const char* separator = "";
  for (const auto& entry : dict) {
    out << std::exchange(separator, ", ") << entry.key() << ": ";
    print(out, entry.value());
  }
}

void print(std::ostream& out, const c10::IValue& value) {
  if (value.isTensor()) {
    print_tensor(out, value.toTensor());
  } else if (value.isList()) {
    print_values(out << '[', value.toListRef());
    out << ']';
  } else if (value.isTuple()) {
    print_values(out << '(', value.toTupleRef().elements());
    out << ')';
  } else if (value.isGenericDict()) {
    print_dict(out << '{', value.toGenericDict());
    out << '}';
  } else {
    out << value;
  }
}

/// The call of an operator: its name, its arguments and, if known, their names in the schema.
struct Call {
  std::string_view op;
  at::ArrayRef<c10::IValue> args;
  const c10::FunctionSchema* schema = nullptr;
};

std::string str(const Call& call) {
  std::ostringstream args, kwargs;
  const char* args_separator = "";
  const char* kwargs_separator = "";
  for (std::size_t i = 0; i < call.args.size(); ++i) {
    if (call.schema && call.schema->arguments()[i].kwarg_only()) {
      kwargs << std::exchange(kwargs_separator, ", ") << '\'' << call.schema->arguments()[i].name() << "': ";
      print(kwargs, call.args[i]);
    } else {
      args << std::exchange(args_separator, ", ");
      print(args, call.args[i]);
    }
  }
  return c10::str("torch function '", call.op, "', with args: (", args.str(), ") and kwargs: {", kwargs.str(), "}");
}

Handler custom_op(const ShardingSpec& spec, std::string_view op) {
  auto handler = op_tables()->find("", op);
  return handler ? handler : op_tables()->find(spec.class_name(), op);
}

/// Runs the op for these tensors; nothing if there is none.
std::optional<c10::IValue> try_run(const Call& call, const std::vector<ShardedTensor>& tensors) {
  if (tensors.empty()) return std::nullopt;
  const ShardedTensor& first = tensors.front();
  warn_of_deprecation(first.process_group());
  if (const auto handler = custom_op(*first.sharding_spec(), call.op)) {
    check_same_group(tensors);
    return (*handler)(call.op, call.args, first.process_group());
  }
  const auto builtin = builtin_op(call.op);
  return builtin ? builtin(call.args) : std::nullopt;
}

c10::IValue run(const Call& call, const std::vector<ShardedTensor>& tensors) {
  auto result = try_run(call, tensors);
  if (!result) {
    // A tensor without a group was created as the base class, which has no ops.
    SHARD_CHECK(tensors.empty() || tensors.front().process_group() != nullptr,
                "A ShardedTensorBase object is being used from c++ while calling ", call.op,
                " but there is no custom __torch_dispatch__ implementation for it.");
    SHARD_CHECK(false, str(call), " not supported for ShardedTensor!");
  }
  return std::move(*result);
}

void push_results(const Call& call, c10::IValue result, torch::jit::Stack& stack) {
  const std::size_t count = call.schema->returns().size();
  if (count == 1) stack.push_back(std::move(result));
  if (count <= 1) return;
  SHARD_CHECK_TYPE(result.isTuple() && result.toTupleRef().elements().size() == count, "Op '", call.op, "' has ", count,
                   " results: its handler must return a tuple of as many, but returned ", result.tagKind());
  for (const auto& element : result.toTupleRef().elements()) stack.push_back(element);
}

}  // namespace

void warn_of_deprecation(const ProcessGroupPtr& group) {
  if (group == nullptr || (group->is_member() && group->rank() == 0)) {
    TORCH_WARN_ONCE(kDeprecated);
  }
}

void run_on_sharded_tensors(const c10::OperatorHandle& handle, torch::jit::Stack& stack) {
  const c10::FunctionSchema& schema = handle.schema();
  const std::vector<c10::IValue> args = torch::jit::pop(stack, schema.arguments().size());
  const Call call{name_of(schema.name()), args, &schema};
  push_results(call, run(call, sharded_tensors(args)), stack);
}

struct OpRegistration::Entry {
  std::shared_ptr<OpTables> tables;
  TableAndOp key;
  Handler handler;

  ~Entry() { tables->remove(key, handler); }
};

OpRegistration::OpRegistration(std::unique_ptr<Entry> entry) : entry_(std::move(entry)) {}
OpRegistration::OpRegistration(OpRegistration&&) noexcept = default;
OpRegistration& OpRegistration::operator=(OpRegistration&&) noexcept = default;
OpRegistration::~OpRegistration() = default;

OpRegistration register_op(std::string table, std::string op, ShardedOp handler) {
  SHARD_CHECK_TYPE(handler,
                   "Custom sharded op function expects signature: (op, args, process_group), but received "
                   "no function for '",
                   op, "'");
  SHARD_CHECK_VALUE(known_names().has_op(op), "cannot register the op '", op,
                    "': torch has no operator of this name, and it was not declared (declare_op)");
  SHARD_CHECK_VALUE(table.empty() || known_names().has_class(table), "cannot register an op for the class '", table,
                    "': no sharding spec of this name is known, and it was not declared (declare_spec_class)");
  auto entry = std::make_unique<OpRegistration::Entry>();
  entry->tables = op_tables();
  entry->key = {std::move(table), std::move(op)};
  entry->handler = std::make_shared<const ShardedOp>(std::move(handler));
  entry->tables->add(entry->key, entry->handler);
  return OpRegistration(std::move(entry));
}

void declare_op(std::string op) { known_names().declare_op(std::move(op)); }
void declare_spec_class(std::string spec_class) { known_names().declare_class(std::move(spec_class)); }

bool has_registered_op(const ShardingSpec& spec, std::string_view op) { return custom_op(spec, op) != nullptr; }

bool has_custom_op(const ShardingSpec& spec, std::string_view op) {
  return op_tables()->find(spec.class_name(), op) != nullptr;
}

c10::IValue dispatch_custom_op(const ShardingSpec& spec, std::string_view op, at::ArrayRef<c10::IValue> args,
                               const ProcessGroupPtr& group) {
  const auto handler = op_tables()->find(spec.class_name(), op);
  SHARD_CHECK(handler, "Custom op: ", op, " not registered for ", spec.class_name());
  return (*handler)(op, args, group);
}

c10::IValue call_op(std::string_view op, std::vector<c10::IValue> args) {
  SHARD_CHECK_VALUE(!args.empty(), " No input for '", op, "'!");
  const Call call{op, args};
  const auto tensors = sharded_tensors(args);
  SHARD_CHECK_TYPE(!tensors.empty(), str(call), " are called without any distributed tensor!");
  return run(call, tensors);
}

}  // namespace shard
