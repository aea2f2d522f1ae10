#include "tests/support/distributed/tensors.h"

namespace shard::test {
namespace {

struct Tolerance {
  double relative, absolute;
};

Tolerance tolerance_of(at::ScalarType dtype) {
  switch (at::toRealValueType(dtype)) {
    case at::kHalf:
      return {1e-3, 1e-5};
    case at::kBFloat16:
      return {1.6e-2, 1e-5};
    case at::kFloat:
      return {1.3e-6, 1e-5};
    case at::kDouble:
      return {1e-7, 1e-7};
    default:
      return {0, 0};
  }
}

/// Ones at the sparse indices (0, 0, ...) to (last, 0, ...); `size` is that of sparse dimensions, dense ones have 2.
at::Tensor sparse_ones(int last, int size, int sparse_dims, int dense_dims) {
  std::vector<at::Tensor> rows = {at::arange(last + 1)};
  for (int dim = 1; dim < sparse_dims; ++dim) rows.push_back(at::zeros({last + 1}, at::kLong));
  std::vector<std::int64_t> shape = {size}, values = {last + 1};
  shape.insert(shape.end(), static_cast<std::size_t>(dense_dims), 2);
  values.insert(values.end(), static_cast<std::size_t>(dense_dims), 2);
  shape.insert(shape.begin(), static_cast<std::size_t>(sparse_dims - 1), size);
  return at::sparse_coo_tensor(at::stack(rows), at::ones(values), shape);
}

SparseReduceTest sparse_reduce_test(int rank, int world_size, int num_inputs, int sparse_dims, int dense_dims) {
  const int total = num_inputs * world_size;
  const auto generate = [&](int last) { return sparse_ones(last, total, sparse_dims, dense_dims); };
  at::Tensor sum = generate(0);
  for (int last = 1; last < total; ++last) sum = sum + generate(last);
  SparseReduceTest test;
  for (int i = 0; i < num_inputs; ++i) {
    test.first.push_back(generate(num_inputs * rank + i));
    test.second.push_back(sum);
  }
  return test;
}

}  // namespace

::testing::AssertionResult tensors_equal(const at::Tensor& actual, const at::Tensor& expected) {
  const auto failure = [&] { return ::testing::AssertionFailure(); };
  if (!actual.defined() || !expected.defined()) return failure() << "a tensor is undefined";
  if (actual.sizes() != expected.sizes()) return failure() << c10::str(actual.sizes(), ", expected ", expected.sizes());
  if (actual.scalar_type() != expected.scalar_type()) {
    return failure() << c10::str(actual.scalar_type(), ", expected ", expected.scalar_type());
  }
  const at::Tensor a = actual.detach().to(at::kCPU), b = expected.detach().to(at::kCPU);
  const Tolerance tolerance = tolerance_of(a.scalar_type());
  const at::Tensor close = tolerance.relative > 0
                               ? at::isclose(a, b, tolerance.relative, tolerance.absolute, /*equal_nan=*/true)
                               : at::eq(a, b);
  if (close.all().item<bool>()) return ::testing::AssertionSuccess();
  return failure() << c10::str((~close).sum().item<std::int64_t>(), " of ", a.numel(), " elements differ:\n", a,
                               "\nexpected\n", b);
}

std::vector<SparseReduceTest> simple_sparse_reduce_tests(int rank, int world_size, int num_inputs) {
  std::vector<SparseReduceTest> tests;
  for (int dims = 1; dims <= 3; ++dims) tests.push_back(sparse_reduce_test(rank, world_size, num_inputs, dims, 0));
  for (int dims = 1; dims <= 3; ++dims) tests.push_back(sparse_reduce_test(rank, world_size, num_inputs, 1, dims));
  return tests;
}

SaveForwardInputsModule::SaveForwardInputsModule(ForwardInputs& inputs, bool cast_forward_inputs)
    : layer_(register_module("l", torch::nn::Linear(100, 100))),
      inputs_(inputs),
      cast_forward_inputs_(cast_forward_inputs) {}

at::Tensor SaveForwardInputsModule::forward(const at::Tensor& x) {
  inputs_[this] = x;
  return layer_->forward(cast_forward_inputs_ ? x.to(layer_->weight.scalar_type()) : x);
}

SaveForwardInputsModel::SaveForwardInputsModel(ForwardInputs& inputs, bool cast_forward_inputs)
    : c1(register_module("c1", std::make_shared<SaveForwardInputsModule>(inputs, cast_forward_inputs))),
      c2(register_module("c2", std::make_shared<SaveForwardInputsModule>(inputs, cast_forward_inputs))),
      inputs_(inputs) {}

at::Tensor SaveForwardInputsModel::forward(const at::Tensor& x) {
  inputs_[this] = x;
  return c2->forward(c1->forward(x));
}

::testing::AssertionResult verify_ddp_error_logged(const std::map<std::string, std::string>& logged,
                                                   const std::string& expected) {
  for (const char* const field : {"iteration", "has_error", "error"}) {
    if (logged.count(field) == 0) return ::testing::AssertionFailure() << "the log has no field " << field;
  }
  const std::string actual = expected.substr(0, expected.find("\nException raised from "));
  if (logged.at("error").find(actual) != std::string::npos) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "Did not find expected " << actual
                                       << " in ddp logging data error: " << logged.at("error");
}

::testing::AssertionResult verify_ddp_error_logged(const c10::DDPLoggingData& logged, const std::string& expected) {
  std::map<std::string, std::string> fields = logged.strs_map;
  for (const auto& [name, number] : logged.ints_map) fields.emplace(name, std::to_string(number));
  return verify_ddp_error_logged(fields, expected);
}

}  // namespace shard::test
