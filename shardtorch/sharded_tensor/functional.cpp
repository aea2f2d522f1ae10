#include "shardtorch/sharded_tensor/functional.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <algorithm>
#include <memory>
#include <type_traits>
#include <utility>

#include "shardtorch/sharded_tensor/autograd_node.h"
#include "shardtorch/sharded_tensor/sharded_tensor_impl.h"

namespace shard::functional {

namespace {

namespace autograd = torch::autograd;

class CollectiveNode final : public autograd::Node {
 public:
  explicit CollectiveNode(std::function<Tensors(Tensors)> backward) : backward_(std::move(backward)) {}
  std::string name() const override { return "CollectiveBackward"; }
  autograd::variable_list apply(autograd::variable_list&& gradients) override {
    const at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      if (!gradients[i].defined()) gradients[i] = input_metadata(static_cast<std::uint32_t>(i)).zeros_like();
    }
    return backward_(std::move(gradients));
  }

 private:
  std::function<Tensors(Tensors)> backward_;
};

/// A template, so that only the branch for this LibTorch's `Pointer` is compiled.
template <typename Pointer, typename Node>
Pointer make_node(std::function<Tensors(Tensors)> backward) {
  if constexpr (std::is_same_v<Pointer, std::shared_ptr<autograd::Node>>) {
    return Pointer(new Node(std::move(backward)),
                   [](auto* node) { deleteNode(node); });  // Deletes long chains without recursion.
  } else {
    return c10::make_intrusive<Node>(std::move(backward));
  }
}

at::Tensor of_one(const at::Tensor& input, const std::function<at::Tensor()>& forward,
                  const std::function<at::Tensor(const at::Tensor&)>& backward) {
  return differentiable(
      {input}, [&] { return Tensors{forward()}; },
      [backward](const Tensors& gradients) { return Tensors{backward(gradients[0])}; })[0];
}

at::Tensor summed(const at::Tensor& tensor, const ProcessGroupPtr& group) {
  at::Tensor sum = tensor.clone(at::MemoryFormat::Contiguous);
  shard::all_reduce(sum, ReduceOp::kSum, group);
  return sum;
}

}  // namespace

Tensors differentiable(const Tensors& inputs, const std::function<Tensors()>& forward,
                       std::function<Tensors(Tensors)> backward) {
  Tensors outputs;
  {
    const at::NoGradGuard no_grad;
    outputs = forward();
  }
  // Without this, a view that was created without autograd could not be changed in place with autograd.
  for (at::Tensor& output : outputs) output = output.variable_data();
  if (!records_gradients(inputs)) return outputs;
  const AutogradNodePtr node = make_node<AutogradNodePtr, CollectiveNode>(std::move(backward));
  node->set_next_edges(autograd::collect_next_edges(inputs));
  for (at::Tensor& output : outputs) autograd::set_history(output, node);
  return outputs;
}

bool records_gradients(const Tensors& inputs) { return autograd::compute_requires_grad(inputs); }

std::string gradients_fact(bool are_recorded) {
  return c10::str("gradients are recorded=", are_recorded ? "true" : "false");
}

at::Tensor all_reduce(const at::Tensor& tensor, Losses losses, const ProcessGroupPtr& group) {
  return of_one(
      tensor, [&] { return summed(tensor, group); },
      [losses, group](const at::Tensor& gradient) {
        return losses == Losses::kSummed ? summed(gradient, group) : gradient;
      });
}

at::Tensor replicated(const at::Tensor& tensor, const ProcessGroupPtr& group) {
  return of_one(
      tensor, [&] { return tensor.detach(); }, [group](const at::Tensor& gradient) { return summed(gradient, group); });
}

at::Tensor all_gather(const at::Tensor& own, std::int64_t dim, Losses losses, const ProcessGroupPtr& group) {
  const ProcessGroupPtr ranks = group_or_default(group);
  return of_one(
      own, [&] { return shard::all_gather(own, dim, ranks); },
      [dim, losses, ranks, sizes = own.sizes().vec()](const at::Tensor& gradient) {
        if (losses == Losses::kSummed) {
          return shard::reduce_scatter(gradient, ReduceOp::kSum, dim, ranks).view(sizes);
        }
        return gradient.tensor_split(ranks->size(), dim)[static_cast<std::size_t>(ranks->rank())].reshape(sizes);
      });
}

at::Tensor reduce_scatter(const at::Tensor& whole, std::int64_t dim, const ProcessGroupPtr& group) {
  return of_one(
      whole, [&] { return shard::reduce_scatter(whole, ReduceOp::kSum, dim, group); },
      [dim, group](const at::Tensor& gradient) { return shard::all_gather(gradient, dim, group); });
}

std::vector<at::Tensor> all_to_all(const std::vector<at::Tensor>& to,
                                   const std::vector<std::vector<std::int64_t>>& shapes, const ProcessGroupPtr& group) {
  const auto received = [group](const Tensors& sent, const std::vector<std::vector<std::int64_t>>& wanted) {
    Tensors from;
    for (std::size_t i = 0; i < sent.size(); ++i) from.push_back(at::empty(wanted.at(i), sent[i].options()));
    shard::all_to_all(sent, from, group);
    return from;
  };
  std::vector<std::vector<std::int64_t>> own_shapes;
  for (const at::Tensor& tensor : to) own_shapes.push_back(tensor.sizes().vec());
  return differentiable(
      to, [&] { return received(to, shapes); },
      [received, own_shapes](const Tensors& gradients) { return received(gradients, own_shapes); });
}

at::Tensor full_tensor(const ShardedTensor& tensor, Losses losses) {
  const std::vector<Shard> shards = tensor.local_shards();
  Tensors local;
  for (const Shard& shard : shards) local.push_back(shard.tensor);
  if (shards.empty()) {  // Adds an input that makes this rank take part in backward.
    local.push_back(at::empty({0}, at::TensorOptions(tensor.dtype())).set_requires_grad(tensor.requires_grad()));
  }
  const std::vector<std::string> facts{c10::str("losses=", losses == Losses::kSummed ? "summed" : "replicated"),
                                       gradients_fact(records_gradients(local))};
  return differentiable(
      local, [&] { return Tensors{shard::full_tensor(tensor, facts)}; },
      [shards, losses, group = tensor.process_group()](const Tensors& gradients) {
        const at::Tensor whole = losses == Losses::kSummed ? summed(gradients[0], group) : gradients[0];
        Tensors parts;
        for (const Shard& shard : shards) {
          parts.push_back(at::empty_like(shard.tensor).copy_(narrow_tensor(whole, shard.metadata)));
        }
        parts.resize(std::max<std::size_t>(parts.size(), 1));
        return parts;
      })[0];
}

at::Tensor own_rows(const at::Tensor& table, const at::Tensor& indices, std::int64_t first, std::int64_t padding) {
  const at::Tensor local = indices - first;
  const at::Tensor elsewhere = local.lt(0).logical_or(local.ge(table.size(0)));
  if (table.size(0) == 0) {  // Zeros that keep the table in the graph.
    std::vector<std::int64_t> shape = indices.sizes().vec();
    shape.push_back(table.size(1));
    return table.sum().expand(shape).clone();
  }
  const std::int64_t own_padding = padding - first;
  const bool has_padding = padding >= 0 && own_padding >= 0 && own_padding < table.size(0);
  return at::embedding(table, local.masked_fill(elsewhere, 0), has_padding ? own_padding : -1)
      .masked_fill(elsewhere.unsqueeze(-1), 0);
}

}  // namespace shard::functional
