// One of the ranks that make the calls of random_dtensors.py on DTensors: dtensor_cases CASES_FILE STORE_FILE RANK
// WORLD_SIZE. That file describes cases and results. A line of results has fields with tabs between them:
//
//   ok PLACEMENTS SHAPE LOCAL_ELEMENTS ELEMENTS [GRADIENT...]
//   refused TEXT
//
// In place of gradients that are not recorded, there is "refused TEXT".
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <vector>

#include "shardtorch/dtensor/dtensor.h"
#include "shardtorch/errors.h"

namespace {

namespace dt = shard::dtensor;
using Sizes = std::vector<std::int64_t>;
using Tensors = std::vector<at::Tensor>;
using Words = std::vector<std::string>;

Words split(const std::string& text, const std::string& separator) {
  Words words;
  std::size_t begin = 0;
  for (std::size_t end = 0; (end = text.find(separator, begin)) != std::string::npos; begin = end + separator.size()) {
    words.push_back(text.substr(begin, end - begin));
  }
  words.push_back(text.substr(begin));
  return words;
}

std::int64_t number(const std::string& text) { return std::stoll(text); }

Sizes numbers(const Words& words) {
  Sizes all;
  for (const std::string& word : words) all.push_back(number(word));
  return all;
}

Sizes shape_from(const std::string& text) { return text == "scalar" ? Sizes() : numbers(split(text, "x")); }

shard::ReduceOp operation_from(const std::string& name) {
  if (name == "avg") return shard::ReduceOp::kMean;
  if (name == "max") return shard::ReduceOp::kMax;
  return name == "min" ? shard::ReduceOp::kMin : shard::ReduceOp::kSum;
}

dt::Placement placement_from(const std::string& text) {
  if (text == "R") return dt::Replicate();
  const std::size_t open = text.find('(');
  const std::string inside = text.substr(open + 1, text.size() - open - 2);
  if (text.starts_with("P")) return dt::Partial{operation_from(inside)};
  if (text.starts_with("S")) return dt::Shard{number(inside)};
  const Sizes both = numbers(split(inside, ","));
  return dt::StridedShard{both[0], both[1]};
}

dt::Placements placements_from(const std::string& text) {
  dt::Placements placements;
  for (const std::string& word : split(text, "/")) placements.push_back(placement_from(word));
  return placements;
}

std::string text_of(const dt::Placements& placements) {
  std::string text;
  for (const dt::Placement& each : placements) {
    std::string own = dt::to_string(each);
    std::erase(own, ' ');
    text += (text.empty() ? "" : "/") + own;
  }
  return text;
}

std::string text_of(at::IntArrayRef shape) {
  std::string text;
  for (const std::int64_t size : shape) text += (text.empty() ? "" : "x") + std::to_string(size);
  return text.empty() ? "scalar" : text;
}

std::string elements_of(const at::Tensor& tensor) {
  const at::Tensor values = tensor.detach().to(at::kDouble).flatten();
  std::string text;
  for (std::int64_t i = 0; i < values.numel(); ++i) {
    char word[32];
    std::snprintf(word, sizeof word, "%.17g", values[i].item<double>());
    text += (text.empty() ? "" : ",") + std::string(word);
  }
  return text.empty() ? "-" : text;
}

// --- Tensors: the same elements and terms as in random_dtensors.py ---

at::Tensor whole_tensor(const Sizes& shape, const std::string& kind, std::int64_t index) {
  const at::Tensor order = at::arange(c10::multiply_integers(shape), at::kLong).mul(7).add(3 * index).view(shape);
  if (kind[0] == 'i') return order.remainder(number(kind.substr(1)));
  if (kind[0] == 't') {
    const std::int64_t classes = number(kind.substr(1));
    const at::Tensor target = order.remainder(classes + 1);
    return target.masked_fill(target.eq(classes), -100);
  }
  const at::Tensor value = order.remainder(23).sub(11).to(at::kDouble).add(0.5).div(8);
  return kind == "d+" ? value.abs() : value;
}

/// Terms that combine to `part` exactly.
at::Tensor term(at::Tensor part, const dt::Placements& placements, const dt::DeviceMesh& mesh) {
  for (std::size_t axis = 0; axis < placements.size(); ++axis) {
    const auto* const partial = std::get_if<dt::Partial>(&placements[axis]);
    if (partial == nullptr) continue;
    const std::int64_t ranks = mesh.size(axis), own = mesh.get_local_rank(axis);
    const std::int64_t weight = own == 0 ? 1 - (ranks * (ranks + 1) / 2 - 1) : own + 1;
    if (partial->op == shard::ReduceOp::kSum) part = part * weight;
    if (partial->op == shard::ReduceOp::kMean) part = part * weight * ranks;
    if (partial->op == shard::ReduceOp::kMin) part = part + own;
    if (partial->op == shard::ReduceOp::kMax) part = part - own;
  }
  return part;
}

dt::DTensor make(const std::string& text, std::int64_t index, const dt::DeviceMeshPtr& mesh, bool records) {
  const Words words = split(text, " ");
  const at::Tensor whole = whole_tensor(shape_from(words[0]), words[2], index);
  const dt::Placements placements = placements_from(words[1]);
  dt::Placements cuts = placements;
  for (dt::Placement& each : cuts) {
    if (std::holds_alternative<dt::Partial>(each)) each = dt::Replicate();
  }
  const at::Tensor part = dt::distribute_tensor(whole, mesh, cuts, std::nullopt).local();
  at::Tensor leaf = term(part, placements, *mesh).clone(at::MemoryFormat::Contiguous);
  leaf.set_requires_grad(records && words[2] == "d");
  return dt::DTensor::from_local(leaf, mesh, placements, {.shape = whole.sizes().vec()});
}

// --- Calls ---

/// A call on the tensors of a case, or on the result of the one before, with its arguments.
using Call = std::function<at::Tensor(const Tensors& x, const Words& a)>;

std::int64_t arg(const Words& words, std::size_t i) { return number(words.at(i)); }

/// Calls `one` with the dimensions "0,1" and "1" for kept ones, or `all` for "all".
template <class All, class One>
Call reduced(All all, One one) {
  return [=](const Tensors& x, const Words& a) {
    return a[0] == "all" ? all(x[0]) : one(x[0], numbers(split(a[0], ",")), a[1] == "1");
  };
}

at::Tensor moved(const Tensors& x, const Words& a) {
  const dt::DTensor tensor = dt::DTensor::of(x[0]);
  if (!tensor.defined()) return x[0];
  const dt::Placements whole(tensor.device_mesh()->ndim(), dt::Replicate());
  return tensor.redistribute(a[0] == "whole" ? whole : placements_from(a[0])).as_tensor();
}

at::Tensor loss(const Tensors& x, const Words& a, bool is_of_logits) {
  const auto reduction = a[0] == "mean"  ? at::Reduction::Mean
                         : a[0] == "sum" ? at::Reduction::Sum
                                         : at::Reduction::None;
  const auto weight = x.size() > 2 ? std::optional<at::Tensor>(x[2]) : std::nullopt;
  return is_of_logits ? at::cross_entropy_loss(x[0], x[1], weight, reduction)
                      : at::nll_loss_nd(x[0], x[1], weight, reduction);
}

at::Tensor norm(const Tensors& x, const Words& a, bool is_of_layer) {
  const Sizes shape = x[0].sizes().slice(static_cast<std::size_t>(x[0].dim() - arg(a, 0))).vec();
  const auto weight = x.size() > 1 ? std::optional<at::Tensor>(x[1]) : std::nullopt;
  const auto bias = x.size() > 2 ? std::optional<at::Tensor>(x[2]) : std::nullopt;
  return is_of_layer ? at::layer_norm(x[0], shape, weight, bias) : at::rms_norm(x[0], shape, weight);
}

using T = const Tensors&;
using A = const Words&;

const std::map<std::string, Call>& elementwise_calls() {
  static const std::map<std::string, Call> calls{
      {"relu", [](T x, A) { return at::relu(x[0]); }},
      {"gelu", [](T x, A) { return at::gelu(x[0]); }},
      {"tanh", [](T x, A) { return at::tanh(x[0]); }},
      {"sigmoid", [](T x, A) { return at::sigmoid(x[0]); }},
      {"silu", [](T x, A) { return at::silu(x[0]); }},
      {"exp", [](T x, A) { return at::exp(x[0]); }},
      {"neg", [](T x, A) { return at::neg(x[0]); }},
      {"abs", [](T x, A) { return at::abs(x[0]); }},
      {"sin", [](T x, A) { return at::sin(x[0]); }},
      {"clone", [](T x, A) { return x[0].clone(); }},
      {"contiguous", [](T x, A) { return x[0].contiguous(); }},
      {"to_float", [](T x, A) { return x[0].to(at::kFloat); }},
      {"mul_scalar", [](T x, A a) { return at::_ops::mul_Scalar::call(x[0], arg(a, 0)); }},
      {"add_scalar", [](T x, A a) { return at::_ops::add_Scalar::call(x[0], arg(a, 0), 1); }},
      {"div_scalar", [](T x, A a) { return at::_ops::div_Scalar::call(x[0], arg(a, 0)); }},
      {"pow_scalar", [](T x, A a) { return at::pow(x[0], arg(a, 0)); }},
      {"add", [](T x, A) { return at::add(x[0], x[1]); }},
      {"sub", [](T x, A) { return at::sub(x[0], x[1]); }},
      {"mul", [](T x, A) { return at::mul(x[0], x[1]); }},
      {"div", [](T x, A) { return at::div(x[0], x[1]); }},
      {"maximum", [](T x, A) { return at::maximum(x[0], x[1]); }},
      {"minimum", [](T x, A) { return at::minimum(x[0], x[1]); }},
      {"atan2", [](T x, A) { return at::atan2(x[0], x[1]); }},
      {"eq", [](T x, A) { return at::eq(x[0], x[1]); }},
      {"where", [](T x, A) { return at::where(at::gt(x[0], x[1]), x[0], x[1]); }},
      {"add_", [](T x, A) { return x[0].add_(x[1]); }},
      {"mul_", [](T x, A) { return x[0].mul_(x[1]); }},
      {"copy_", [](T x, A) { return x[0].copy_(x[1]); }},
      {"relu_", [](T x, A) { return x[0].relu_(); }},
      {"zero_", [](T x, A) { return x[0].zero_(); }},
      {"fill_", [](T x, A) { return x[0].fill_(3); }},
      {"zeros_like", [](T x, A) { return at::zeros_like(x[0]); }},
      {"ones_like", [](T x, A) { return at::ones_like(x[0]); }},
      {"full_like", [](T x, A) { return at::full_like(x[0], 3); }},
      {"new_zeros", [](T x, A) { return x[0].new_zeros(x[0].sizes()); }},
      {"new_full",
       [](T x, A) {
         return x[0].new_full({4, 2}, 5);
       }},
  };
  return calls;
}

const std::map<std::string, Call>& view_calls() {
  static const std::map<std::string, Call> calls{
      {"view", [](T x, A a) { return x[0].view(numbers(a)); }},
      {"reshape", [](T x, A a) { return x[0].reshape(numbers(a)); }},
      {"flatten", [](T x, A a) { return x[0].flatten(arg(a, 0), arg(a, 1)); }},
      {"transpose", [](T x, A a) { return x[0].transpose(arg(a, 0), arg(a, 1)); }},
      {"permute", [](T x, A a) { return x[0].permute(numbers(a)); }},
      {"unsqueeze", [](T x, A a) { return x[0].unsqueeze(arg(a, 0)); }},
      {"squeeze", [](T x, A a) { return x[0].squeeze(arg(a, 0)); }},
      {"expand", [](T x, A a) { return x[0].expand(numbers(a)); }},
      {"select", [](T x, A a) { return x[0].select(arg(a, 0), arg(a, 1)); }},
      {"unbind", [](T x, A a) { return x[0].unbind(arg(a, 0)).at(static_cast<std::size_t>(arg(a, 1))); }},
      {"slice", [](T x, A a) { return x[0].slice(arg(a, 0), arg(a, 1), arg(a, 2), arg(a, 3)); }},
      {"narrow", [](T x, A a) { return x[0].narrow(arg(a, 0), arg(a, 1), arg(a, 2)); }},
      {"split", [](T x, A a) { return x[0].split(arg(a, 1), arg(a, 0)).at(static_cast<std::size_t>(arg(a, 2))); }},
      {"chunk", [](T x, A a) { return x[0].chunk(arg(a, 1), arg(a, 0)).at(static_cast<std::size_t>(arg(a, 2))); }},
      {"cat", [](T x, A a) { return at::cat(x, arg(a, 0)); }},
      {"stack", [](T x, A a) { return at::stack(x, arg(a, 0)); }},
      {"redistribute", moved},
      {"full_tensor", [](T x, A a) { return dt::DTensor::of(x[0]).full_tensor(placements_from(a[0])); }},
      {"to_local", [](T x, A a) { return dt::DTensor::of(x[0]).to_local(placements_from(a[0])); }},
  };
  return calls;
}

const std::map<std::string, Call>& math_calls() {
  const auto one = [](const Sizes& dims) { return at::OptionalIntArrayRef(dims); };
  static const std::map<std::string, Call> calls{
      {"sum", reduced([](auto& x) { return x.sum(); }, [=](auto& x, auto d, bool k) { return x.sum(one(d), k); })},
      {"mean", reduced([](auto& x) { return x.mean(); }, [=](auto& x, auto d, bool k) { return x.mean(one(d), k); })},
      {"amax", reduced([](auto& x) { return x.amax(); }, [](auto& x, auto d, bool k) { return x.amax(d, k); })},
      {"amin", reduced([](auto& x) { return x.amin(); }, [](auto& x, auto d, bool k) { return x.amin(d, k); })},
      {"var", reduced([](auto& x) { return x.var(); },
                      [=](auto& x, auto d, bool k) { return x.var(one(d), std::nullopt, k); })},
      {"std", reduced([](auto& x) { return x.std(); },
                      [=](auto& x, auto d, bool k) { return x.std(one(d), std::nullopt, k); })},
      {"max", [](T x, A) { return x[0].max(); }},
      {"min", [](T x, A) { return x[0].min(); }},
      {"prod", [](T x, A a) { return x[0].prod(arg(a, 0), a[1] == "1"); }},
      {"logsumexp", [](T x, A a) { return x[0].logsumexp(arg(a, 0), a[1] == "1"); }},
      {"cumsum", [](T x, A a) { return x[0].cumsum(arg(a, 0)); }},
      {"softmax", [](T x, A a) { return x[0].softmax(arg(a, 0)); }},
      {"log_softmax", [](T x, A a) { return x[0].log_softmax(arg(a, 0)); }},
      {"mm", [](T x, A) { return at::mm(x[0], x[1]); }},
      {"bmm", [](T x, A) { return at::bmm(x[0], x[1]); }},
      {"matmul", [](T x, A) { return at::matmul(x[0], x[1]); }},
      {"addmm", [](T x, A) { return at::addmm(x[0], x[1], x[2]); }},
      {"baddbmm", [](T x, A) { return at::baddbmm(x[0], x[1], x[2]); }},
      {"linear", [](T x, A) { return x.size() > 2 ? at::linear(x[0], x[1], x[2]) : at::linear(x[0], x[1]); }},
      {"embedding", [](T x, A a) { return at::embedding(x[0], x[1], arg(a, 0)); }},
      {"layer_norm", [](T x, A a) { return norm(x, a, true); }},
      {"rms_norm", [](T x, A a) { return norm(x, a, false); }},
      {"cross_entropy", [](T x, A a) { return loss(x, a, true); }},
      {"nll_loss", [](T x, A a) { return loss(x, a, false); }},
  };
  return calls;
}

const Call& call_of(const std::string& name) {
  for (const auto* const calls : {&elementwise_calls(), &view_calls(), &math_calls()}) {
    if (const auto found = calls->find(name); found != calls->end()) return found->second;
  }
  throw std::invalid_argument("there is no call " + name);
}

at::Tensor run(const std::string& calls, Tensors tensors) {
  for (const std::string& text : split(calls, " ; ")) {
    Words words = split(text, " ");
    const Call& call = call_of(words[0]);
    words.erase(words.begin());
    tensors = {call(tensors, words)};
  }
  return tensors[0];
}

// --- Results ---

std::string one_line(const std::exception& error) {
  std::string text = shard::message_of(error);
  for (char& letter : text) {
    if (letter == '\n' || letter == '\t') letter = ' ';
  }
  return text.substr(0, 300);
}

/// The fields of a result, and those of gradients.
std::string results(const std::string& calls, const std::vector<dt::DTensor>& tensors, bool records) {
  const at::Tensor result = run(calls, Tensors(tensors.begin(), tensors.end()));
  const dt::DTensor own = dt::DTensor::of(result);
  const at::Tensor whole = own.defined() ? own.full_tensor() : result;
  const std::string placements = own.defined() ? text_of(own.placements()) : "-";
  const bool has_terms = placements.find('P') != std::string::npos;
  std::string text = placements + '\t' + text_of(result.sizes()) + '\t' +
                     (has_terms ? "-" : elements_of(own.defined() ? own.local() : result)) + '\t' + elements_of(whole);
  if (!records || !whole.requires_grad()) return text;
  const bool is_of_ranks =
      calls.find("full_tensor") != std::string::npos || calls.find("to_local") != std::string::npos;
  const int factor = is_of_ranks ? shard::default_group()->rank() + 1 : 1;
  const at::Tensor weights = whole_tensor(whole.sizes().vec(), "d", 2).to(whole.scalar_type());
  (whole * weights * factor).sum().backward();
  for (const dt::DTensor& each : tensors) {
    const at::Tensor gradient = each.local().grad();
    text += '\t' + (gradient.defined() ? elements_of(gradient) : "none");
  }
  return text;
}

/// The line of a case. Gradients that are refused leave the elements.
std::string answer(const std::string& line, const dt::DeviceMeshPtr& mesh) {
  const Words parts = split(line, " : ");
  const bool is_in_place = split(parts[1], " ")[0].ends_with('_');
  const auto tensors = [&](bool records) {
    std::vector<dt::DTensor> made;
    for (std::size_t i = 2; i < parts.size(); ++i)
      made.push_back(make(parts[i], static_cast<std::int64_t>(i) - 2, mesh, records));
    return made;
  };
  try {
    return "ok\t" + results(parts[1], tensors(!is_in_place), true);
  } catch (const c10::NotImplementedError& error) {
    return "ok\t" + results(parts[1], tensors(false), false) + "\trefused " + one_line(error);
  }
}

void run_cases(const std::string& file) {
  std::ifstream cases(file);
  std::map<std::string, dt::DeviceMeshPtr> meshes;
  for (std::string line; std::getline(cases, line);) {
    const std::string shape = line.substr(0, line.find(' '));
    if (meshes[shape] == nullptr) meshes[shape] = dt::init_device_mesh(at::kCPU, shape_from(shape));
    try {
      std::cout << answer(line, meshes[shape]) << std::endl;
    } catch (const c10::Error& error) {  // Errors of a broken group end this rank.
      std::cout << "refused\t" << one_line(error) << std::endl;
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) return EXIT_FAILURE;
  const int rank = std::atoi(argv[3]), ranks = std::atoi(argv[4]);
  at::set_num_threads(1);
  try {
    shard::init_process_group(shard::make_c10d_world("gloo", c10::make_intrusive<c10d::FileStore>(argv[2], ranks), rank,
                                                     ranks, std::chrono::seconds(30)));
    run_cases(argv[1]);
    shard::default_group()->barrier();
    shard::destroy_process_group();
    return EXIT_SUCCESS;
  } catch (const std::exception& error) {
    std::cerr << one_line(error) << '\n';
  }
  return EXIT_FAILURE;
}
