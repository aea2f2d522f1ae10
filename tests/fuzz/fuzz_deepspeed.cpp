#include "formats/deepspeed/format.h"
#include "tests/fuzz/saved_zip.h"
#include "tests/fuzz/target.h"

namespace shard::fuzz {
namespace {

/// Also lays the source out for other ranks, without writing.
void rewrite(const Format& format, InputFiles& files, const RewriteOptions& options) {
  try {
    Rewrite made = format.rewrite({&files, {"/in"}}, {}, options);
    made.writer->place(made.target);
  } catch (const Error&) {
  }
}

}  // namespace
}  // namespace shard::fuzz

// A kind (stages 1 and 2, stage 3, universal of either), then the pickles of its files.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace shard;
  if (size == 0) return 0;
  std::string_view input = fuzz::as_text(data, size);
  const int kind = input.front() & 3;
  input.remove_prefix(1);
  const std::string model = fuzz::saved_zip(fuzz::take_part(input));
  fuzz::InputFiles files;
  if (kind == 0 || kind == 2) files.put("mp_rank_00_model_states.pt", model);
  if (kind == 1 || kind == 3) files.put("zero_pp_rank_0_mp_rank_00_model_states.pt", model);
  if (kind >= 2) {
    files.put("zero/optimizer_state.pt", fuzz::saved_zip(fuzz::take_part(input)));
    files.put("zero/a.weight/fp32.pt", fuzz::saved_zip(fuzz::take_part(input)));
    files.put("zero/a.weight/exp_avg.pt", fuzz::saved_zip(fuzz::take_part(input)));
    fuzz::open_as(kDeepSpeedUniversalFormat, files, {"/in"});
    return 0;
  }
  if (kind == 1) files.put("zero_pp_rank_1_mp_rank_00_model_states.pt", model);
  files.put("zero_pp_rank_0_mp_rank_00_optim_states.pt", fuzz::saved_zip(fuzz::take_part(input)));
  files.put("zero_pp_rank_1_mp_rank_00_optim_states.pt", fuzz::saved_zip(fuzz::take_part(input)));
  if (!fuzz::open_as(kDeepSpeedFormat, files, {"/in"})) return 0;
  fuzz::rewrite(kDeepSpeedFormat, files, {.ranks = 3});
  fuzz::rewrite(kDeepSpeedUniversalFormat, files, {});
  return 0;
}
