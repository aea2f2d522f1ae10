#include "formats/megatron/format.h"
#include "formats/megatron_dist/format.h"
#include "tests/fuzz/saved_zip.h"
#include "tests/fuzz/target.h"

// A kind, then parts. 0 and 1: the pickles of two ranks' files, which are tensor-parallel ranks or stages, and of an
// optimizer on both; 2: one rank's two; 3: the files of megatron-dist: .metadata, the common data, an item.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace shard;
  if (size == 0) return 0;
  std::string_view input = fuzz::as_text(data, size);
  const int kind = input.front() & 3;
  input.remove_prefix(1);
  fuzz::InputFiles files;
  if (kind == 3) {
    files.put("metadata.json", R"({"sharded_backend": "torch_dist", "sharded_backend_version": 1})");
    files.put(".metadata", std::string(fuzz::take_part(input)));
    const std::string_view common = fuzz::take_part(input);
    if (!common.empty()) files.put("common.pt", fuzz::saved_zip(common));
    files.put("__0_0.distcp", fuzz::saved_zip(input));
    fuzz::open_as(kMegatronDistFormat, files, {"/in"});
    return 0;
  }
  std::vector<std::string> ranks{"mp_rank_00"};
  if (kind == 0) ranks.emplace_back("mp_rank_01");
  if (kind == 1) ranks = {"mp_rank_00_000", "mp_rank_00_001"};
  for (const std::string& rank : ranks)
    files.put(rank + "/model_optim_rng.pt", fuzz::saved_zip(fuzz::take_part(input)));
  if (!input.empty()) {
    const std::string optimizer = fuzz::saved_zip(input);
    for (const std::string& rank : ranks) files.put(rank + "/distrib_optim.pt", optimizer);
  }
  fuzz::open_as(kMegatronFormat, files, {"/in"});
  return 0;
}
