#include "libshard/repair/salvage.h"

#include <utility>

#include "libshard/io/paths.h"

namespace shard {

void Salvage::report(const Error& finding) {
  if (!is_damage(finding) || is_unread(finding)) throw Error(finding);
  Loss loss;
  loss.what = finding.tensor().empty() ? Loss::What::kFile : Loss::What::kTensor;
  loss.name = finding.tensor();
  loss.file = finding.file();
  loss.why = reason_of(finding);
  lose(std::move(loss));
}

void Salvage::lose(Loss loss) {
  loss.file = shown_from(sources_, loss.file);
  if (loss.what != Loss::What::kFile && !loss.name.empty()) {
    const auto [index, is_new] = named_.try_emplace((loss.what == Loss::What::kTensor ? "t" : "o") + loss.name,
                                                    static_cast<std::uint32_t>(losses_.size()));
    if (!is_new) {
      Loss& known = losses_[index];
      if (known.dtype.empty()) known.dtype = std::move(loss.dtype);
      if (!known.shape) known.shape = std::move(loss.shape);
      known.boxes.insert(known.boxes.end(), loss.boxes.begin(), loss.boxes.end());
      return;
    }
  }
  losses_.push_back(std::move(loss));
}

void Salvage::lose_tensor(std::string_view name, std::string_view file, std::string_view why) {
  Loss loss;
  loss.what = Loss::What::kTensor;
  loss.name = name;
  loss.file = file;
  loss.why = why;
  lose(std::move(loss));
}

void Salvage::lose_storage(std::uint32_t storage, const Error& why) { storages_.try_emplace(storage, why); }

}  // namespace shard
