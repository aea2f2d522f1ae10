// A ShardedTensor of one rank, with RPC: the smallest use of the installed libraries.
#include <ATen/ATen.h>

#include <iostream>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "shardtorch/rpc/rpc.h"
#include "shardtorch/sharded_tensor/factories.h"

int main() {
  shard::init_process_group(shard::make_thread_worlds(1).front());
  shard::init_rpc(c10::make_intrusive<c10d::HashStore>(), {.name = "worker0"});
  int result = 1;
  {
    const shard::ShardedTensor st =
        shard::sharded_tensor::full(shard::chunk_spec(0, {"rank:0/cpu"}), {4, 2}, 3, {.init_rrefs = true});
    const at::Tensor whole = at::zeros({4, 2});
    st.gather(0, whole);
    std::cout << st.local_tensor() << '\n';
    result = whole.equal(at::full({4, 2}, 3.0)) && st.remote_shards().empty() ? 0 : 1;
  }
  shard::shutdown_rpc();
  shard::destroy_process_group();
  return result;
}
