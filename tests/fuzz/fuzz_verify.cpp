#include <cstdlib>

#include "formats/dcp/format.h"
#include "formats/safetensors/format.h"
#include "formats/torch/format.h"
#include "libshard/verify/verify.h"
#include "tests/fuzz/saved_zip.h"
#include "tests/fuzz/target.h"

namespace {

using namespace shard;

/// A manifest that states hashes of zeros, which no block has.
StatedFiles state(const fuzz::InputFiles& files, const std::string& name) {
  StatedFiles stated;
  stated.store = &files;
  stated.folder = "/in";
  const std::int64_t bytes = files.status("/in/" + name).bytes;
  stated.manifest.files.push_back(
      {name, bytes,
       std::string(static_cast<std::size_t>(block_count(bytes)) * hex_digits(stated.manifest.algorithm), '0')});
  return stated;
}

/// Every finding has a kind; a pass reads each byte of the files at most a few times.
void verify(const Format& format, fuzz::InputFiles& files, const std::string& path, const StatedFiles* stated) {
  constexpr std::int64_t kTimes = 4;
  VerifyFindings found({path});
  Progress progress;
  std::unique_ptr<Reader> reader;
  OpenOptions options;
  options.findings = &found;
  try {
    reader = format.open({&files, {path}}, options);
  } catch (const Error& error) {
    if (!error.kind()) return;
    found.report(error);
  }
  const VerifyJob job{.reader = reader.get(), .stated = stated, .max_memory_bytes = 4 << 20};
  Verification verification(job, solo_group(), found, progress);
  verification.prepare({});
  verification.read({});
  verification.finish();
  for (const Finding& finding : found.sorted()) {
    if (!finding.error.kind()) std::abort();
  }
  if (stated != nullptr && stated->manifest.files[0].bytes > 0 && !found.has_errors()) std::abort();
  if (reader != nullptr && verification.counts().bytes > kTimes * files.held_bytes() + (1 << 20)) std::abort();
}

}  // namespace

// Verifies a file of torch (0), one of safetensors (1), a folder of dcp with one item (2); with 4 added a manifest
// states wrong hashes of it.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  std::string_view input = fuzz::as_text(data + 1, size - 1);
  fuzz::InputFiles files;
  const int form = data[0] % 4;
  std::string name = form == 1 ? "x.safetensors" : "x.pt";
  if (form == 2) {
    name = "__0_0.distcp";
    files.put(".metadata", std::string(fuzz::take_part(input)));
    files.put(name, fuzz::saved_zip(input));
  } else {
    files.put(name, std::string(input));
  }
  const StatedFiles stated = state(files, name);
  const Format& format = form == 2 ? kDcpFormat : form == 1 ? kSafetensorsFormat : kTorchFormat;
  try {
    verify(format, files, form == 2 ? "/in" : "/in/" + name, (data[0] & 4) != 0 ? &stated : nullptr);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kUnsupported) std::abort();
  }
  return 0;
}
