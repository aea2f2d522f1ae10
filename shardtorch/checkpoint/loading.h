/// \file
/// One rank's part of loading a checkpoint into a state dict. Inside shardtorch/checkpoint only.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "libshard/catalog/catalog_builder.h"
#include "libshard/checkpoint/reader.h"
#include "libshard/exec/execute.h"
#include "shardtorch/checkpoint/checkpoint.h"
#include "shardtorch/checkpoint/tensor_memory.h"

namespace shard::checkpoint {

/// Tensors of a state dict, and values without tensors, by name.
struct WantedTensor {
  std::string name;
  std::string stored;  ///< The name in the checkpoint.
  at::Tensor tensor;
};
struct WantedValue {
  std::string name, stored;
  bool is_empty_dict;  ///< Which some formats do not store.
  std::function<void(c10::IValue)> assign;
};

/// Three steps. An error before the last step changes no value, an error before the second no tensor.
class Loading {
 public:
  /// Ownership: `state` must outlive this.
  Loading(StateDict& state, int rank, const LoadOptions& options)
      : state_(state), rank_(rank), options_(options), memory_(options.on_progress) {}

  /// Opens the checkpoint, compares it with the state, and plans.
  /// \throws Error  see load()
  void prepare(const std::string& path);
  /// Reads this rank's bytes into the tensors.
  void read(const std::stop_token& stop);
  /// Replaces the other values.
  LoadResult finish();

 private:
  void want_tensor(const WantedTensor& wanted);
  const Tensor* find_tensor(const std::string& name) const;
  void add_target(const WantedTensor& wanted, const Tensor& found);
  void add_box(const at::Tensor& local, at::IntArrayRef offsets);
  at::Tensor memory_for(const at::Tensor& local);
  void find_values(std::vector<WantedValue> wanted);
  void miss(const std::string& name, const std::string& stored);
  void check_missing() const;
  void find_unexpected(const std::vector<WantedTensor>& tensors, const std::vector<WantedValue>& values);

  StateDict& state_;
  const int rank_;
  const LoadOptions options_;
  std::unique_ptr<Reader> reader_;
  Catalog target_;  ///< One file: memory_.
  CatalogBuilder builder_{target_};
  TensorMemory memory_;
  Plan plan_;
  std::unordered_set<const void*> filled_;                  ///< Memory that is read into directly.
  std::vector<std::pair<at::Tensor, at::Tensor>> staged_;   ///< All names of one memory except the first: filled
                                                            ///< afterwards.
  std::vector<std::pair<WantedValue, c10::IValue>> found_;  ///< The values that finish() assigns.
  LoadResult result_;
  std::string first_missing_;  ///< The name in the checkpoint.
};

}  // namespace shard::checkpoint
