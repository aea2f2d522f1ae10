/// \file
/// A handle to a node of autograd's graph, of the type that this LibTorch uses.
#pragma once

#include <ATen/core/Tensor.h>

#include <type_traits>
#include <utility>

namespace shard {

/// The result of at::Tensor::grad_fn(): a std::shared_ptr up to LibTorch 2.12, a c10::intrusive_ptr since 2.13.
using AutogradNodePtr = std::remove_cvref_t<decltype(std::declval<const at::Tensor&>().grad_fn())>;

}  // namespace shard
