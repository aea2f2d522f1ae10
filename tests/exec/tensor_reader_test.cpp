#include "libshard/exec/tensor_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "libshard/exec/scratch_tensor.h"
#include "tests/support/expect_error.h"
#include "tests/support/memory_checkpoint.h"
#include "tests/support/scoped_variable.h"

namespace shard {
namespace {

using test::ScopedVariable;
using testing::add_storage;
using testing::add_tensor;
using testing::MadeChunk;
using Bytes = std::vector<std::byte>;

/// A reader whose files behave like those of a decoder: a read before the end of the previous one restarts.
class DecodingReader : public testing::MemoryReader {
 public:
  using testing::MemoryReader::MemoryReader;
  std::shared_ptr<const RandomReader> bytes_of(std::uint32_t storage) const override {
    return std::make_shared<Decoder>(file(catalog().storages[storage].file), *this);
  }
  mutable std::int64_t position = 0, decoded_bytes = 0;

 private:
  class Decoder final : public RandomReader {
   public:
    Decoder(std::shared_ptr<const RandomReader> file, const DecodingReader& reader)
        : file_(std::move(file)), reader_(reader) {}
    void read_at(std::int64_t offset, std::span<std::byte> out) const override {
      if (offset < reader_.position) reader_.position = 0;
      const std::int64_t end = offset + static_cast<std::int64_t>(out.size());
      reader_.decoded_bytes += end - reader_.position;
      reader_.position = end;
      file_->read_at(offset, out);
    }
    std::int64_t size() const override { return file_->size(); }

   private:
    std::shared_ptr<const RandomReader> file_;
    const DecodingReader& reader_;
  };
};

/// A view of 16 MiB of a stream, whose content is random.
struct StreamView {
  static constexpr std::int64_t kBytes = 16 << 20;

  StreamView(const std::vector<std::int64_t>& shape, const std::vector<std::int64_t>& strides, std::int64_t first = 0) {
    std::mt19937_64 random(5);
    const std::uint32_t storage = add_storage(source, 0, kBytes);
    source.storages[storage].is_stream = true;
    const std::vector<std::int64_t> offsets(shape.size(), 0);
    add_tensor(source, "w", DType::kUint8, shape, {MadeChunk{offsets, shape, strides, first, storage}});
    content.resize(static_cast<std::size_t>(kBytes));
    for (std::byte& each : content) each = static_cast<std::byte>(random());
  }

  /// Reads all of a matrix in blocks, within this much memory. \returns the number of decoded bytes.
  std::int64_t read_within(std::int64_t memory_bytes, Progress&& progress = Progress()) {
    return read_within(memory_bytes, progress);
  }
  std::int64_t read_within(std::int64_t memory_bytes, Progress& progress) const {
    const DecodingReader reader(source, {content});
    BufferPool pool(memory_bytes);
    TensorReader tensor(source, reader, 0, progress, throwing_findings(), &pool);
    const Dims shape = source.tensors[0].shape, strides = source.stored[0].strides;
    const std::int64_t columns = shape[1], all = shape[0] * columns, step = tensor.block_elements(1 << 20);
    Bytes block(static_cast<std::size_t>(step));
    for (std::int64_t begin = 0; begin < all; begin += step) {
      const std::int64_t end = std::min(begin + step, all);
      tensor.read(begin, end, std::span(block).first(static_cast<std::size_t>(end - begin)));
      for (std::int64_t i = begin; i < end; i += 101) {
        const std::int64_t at = i / columns * strides[0] + i % columns * strides[1];
        EXPECT_EQ(block[static_cast<std::size_t>(i - begin)], content[static_cast<std::size_t>(at)]) << i;
      }
    }
    return reader.decoded_bytes;
  }

  Catalog source;
  Bytes content;
};

TEST(TensorReader, DecodesATransposedStreamOnce) {
  StreamView view({16384, 1024}, {1, 16384});
  for (const int mebibytes : {17, 5, 2, 1}) {
    EXPECT_EQ(view.read_within(std::int64_t{mebibytes} << 20), StreamView::kBytes) << mebibytes;
  }
}

TEST(TensorReader, DecodesAStreamThatIsReadOverAndOverOnce) {
  StreamView view({4, StreamView::kBytes}, {0, 1});
  EXPECT_EQ(view.read_within(4 << 20), StreamView::kBytes);
}

TEST(TensorReader, ReadsAStreamInItsOrderWithoutAFile) {
  const ScopedVariable nowhere("TMPDIR", "/nowhere");
  StreamView view({1024, 8192}, {16384, 2});
  EXPECT_LE(view.read_within(2 << 20), StreamView::kBytes);
}

TEST(TensorReader, DecodesAStreamForEachPanelWhereNoFileTakesIt) {
  const ScopedVariable nowhere("TMPDIR", "/nowhere");
  StreamView view({16384, 1024}, {1, 16384});
  EXPECT_GT(view.read_within(5 << 20), 3 * StreamView::kBytes);
}

TEST(TensorReader, RefusesToDecodeAStreamManyTimes) {
  const ScopedVariable nowhere("TMPDIR", "/nowhere");
  StreamView view({16384, 1024}, {1, 16384});
  view.read_within(3 << 20);
  const Error error = test::error_of([&] { view.read_within(2 << 20); });
  EXPECT_EQ(error.code(), ErrorCode::kResource) << "16 passes";
  EXPECT_EQ(error.suggestions(), std::vector{Suggestion{Remedy::kMoreMemory}});
}

TEST(ScratchTensor, TakesNoMoreThanAMultipleOfTheFile) {
  constexpr std::int64_t kSide = 1 << 15;
  const StreamView view({kSide + 1, kSide}, {1, kSide + 1});
  const DecodingReader reader(view.source, {view.content});
  const Error error =
      test::error_of([&] { ScratchTensor(view.source, reader, 0, ScratchTensor::Order::kAsStored, {}); });
  EXPECT_EQ(error.code(), ErrorCode::kResource);
  EXPECT_EQ(error.found(), std::to_string(kSide * (kSide + 1)));
  EXPECT_EQ(reader.decoded_bytes, 0);
}

TEST(ScratchTensor, HoldsWhatIsRepeatedOnce) {
  const StreamView view({3, StreamView::kBytes}, {0, 1});
  const DecodingReader reader(view.source, {view.content});
  const ScratchTensor scratch(view.source, reader, 0, ScratchTensor::Order::kAsStored, {});
  EXPECT_EQ(scratch.file(0)->size(), StreamView::kBytes);
  EXPECT_EQ(reader.decoded_bytes, StreamView::kBytes);
}

TEST(ScratchTensor, ReadsWhatAMatrixOfManyRowsHoldsInFewCalls) {
  constexpr std::int64_t kColumns = 16, kRows = StreamView::kBytes / kColumns;
  StreamView view({kColumns, kRows}, {1, kColumns});
  view.source.storages[0].is_stream = false;
  Progress progress;
  view.read_within(4 << 20, progress);
  EXPECT_LT(progress.read_calls, 100) << "where a panel of 3 rows would take a call for each 3 bytes";
  EXPECT_EQ(progress.bytes_read, StreamView::kBytes);
}

}  // namespace
}  // namespace shard
