// A local output whose files are written, by one part.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "libshard/io/local_output.h"
#include "tests/support/bytes.h"

namespace shard::test {

class WrittenOutput {
 public:
  using Files = std::vector<std::pair<std::string, std::string>>;  ///< Path and content.

  WrittenOutput(LocalDisk& fs, const std::string& destination, const Files& files,
                const LocalOutputOptions& options = {}, bool is_folder = true)
      : store_(local_output(fs, destination, {}, options)) {
    std::vector<OutputFile> named;
    for (const auto& [path, content] : files) named.push_back({path, std::ssize(content)});
    output_ = store_->begin(named, is_folder);
    part_ = store_->part(output_->token());
    for (std::size_t i = 0; i < files.size(); ++i) part_->create(named[i]).write_at(0, as_span(files[i].second));
  }
  void commit() {
    part_->finish();
    output_->commit();
  }
  void abort() {
    part_.reset();
    output_->abort();
  }

 private:
  std::unique_ptr<OutputStore> store_;
  std::unique_ptr<Output> output_;
  std::unique_ptr<OutputPart> part_;
};

}  // namespace shard::test
