#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>
#include <zstd.h>

#include <random>
#include <thread>

#include "formats/parts/decoded_view/decoded_view.h"
#include "formats/parts/decoded_view/view_cache.h"
#include "libshard/core/error.h"
#include "tests/formats/bytes_file.h"
#include "tests/support/expect_error.h"

namespace shard::decoded_view {
namespace {

using shard::testing::BytesFile;
using test::error_of;
using ::testing::HasSubstr;
using namespace std::string_literals;

// Compresses about threefold.
std::string sample(std::size_t bytes) {
  std::mt19937 random(7);
  std::string text(bytes, '\0');
  for (std::size_t i = 0; i + 4 <= bytes; i += 4) {
    const std::uint32_t number = random() & 0x03030303;
    std::memcpy(text.data() + i, &number, sizeof number);
  }
  return text;
}

std::string deflated_with(const std::string& text, int window_bits) {
  z_stream stream{};
  EXPECT_EQ(deflateInit2(&stream, 1, Z_DEFLATED, window_bits, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string out(deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

std::string deflated(const std::string& text) { return deflated_with(text, -MAX_WBITS); }
std::string with_adler(const std::string& text) { return deflated_with(text, MAX_WBITS); }

std::string zstd(const std::string& text) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 1));
  return out;
}

struct Opened {
  std::shared_ptr<BytesFile> file;
  std::shared_ptr<const RandomReader> view;
};

// With a byte before and after, so that wrong offsets are detected.
Opened open(const std::string& stored, std::int64_t bytes, Codec codec) {
  Opened opened{std::make_shared<BytesFile>("<" + stored + ">"), nullptr};
  opened.view = decompressed({opened.file, 1, static_cast<std::int64_t>(stored.size()), bytes, codec, "data/0"});
  return opened;
}

std::string read(const RandomReader& view, std::int64_t offset, std::size_t bytes) {
  std::string out(bytes, '?');
  view.read_at(offset, std::as_writable_bytes(std::span(out)));
  return out;
}

struct Case {
  const char* name;
  Codec codec;
  std::string (*compress)(const std::string&);
};

class Decompress : public ::testing::TestWithParam<Case> {
 protected:
  Opened opened(const std::string& text) const {
    return open(GetParam().compress(text), static_cast<std::int64_t>(text.size()), GetParam().codec);
  }
};

TEST_P(Decompress, GivesTheWholeContent) {
  const std::string text = sample(3'000'000);
  EXPECT_EQ(read(*opened(text).view, 0, text.size()), text);
}

TEST_P(Decompress, GivesAnyPieceInAnyOrder) {
  const std::string text = sample(20'000'000);  // Past the window.
  const Opened file = opened(text);
  for (const std::size_t at : {19'999'000UL, 0UL, 18'000'001UL, 5UL, 19'000'000UL, 18'999'990UL, 1'000'000UL}) {
    EXPECT_EQ(read(*file.view, static_cast<std::int64_t>(at), 1000), text.substr(at, 1000)) << at;
  }
}

TEST_P(Decompress, EmptyContentNeedsNoStream) { EXPECT_EQ(read(*opened("").view, 0, 0), ""); }

TEST_P(Decompress, ReadsPastTheEndAreRefused) {
  const Opened file = opened("abc");
  EXPECT_EQ(error_of([&] { read(*file.view, 1, 3); }).code(), ErrorCode::kCorruption);
}

TEST_P(Decompress, ThreadsMayShareAView) {
  const std::string text = sample(8'000'000);
  const Opened file = opened(text);
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, 0);
  for (std::size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (std::size_t at = t * 1000; at + 1000 < text.size(); at += 400'000) {
        wrong[t] += read(*file.view, static_cast<std::int64_t>(at), 1000) != text.substr(at, 1000);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4, 0));
}

TEST_P(Decompress, FewerBytesAreCorruption) {
  const std::string text = sample(1000);
  const Opened file = open(GetParam().compress(text), 1001, GetParam().codec);
  const Error error = error_of([&] { read(*file.view, 0, 1001); });
  EXPECT_EQ(error.code(), ErrorCode::kCorruption);
  EXPECT_EQ(error.kind(), FindingKind::kBadHeader);
  EXPECT_THAT(error.what(), HasSubstr("'data/0'"));
}

TEST_P(Decompress, MoreBytesAreCorruption) {
  const std::string text = sample(1000);
  const Opened file = open(GetParam().compress(text), 999, GetParam().codec);
  EXPECT_EQ(error_of([&] { read(*file.view, 0, 999); }).code(), ErrorCode::kCorruption);
}

TEST_P(Decompress, CutStreamsAreCorruption) {
  const std::string text = sample(100'000), stored = GetParam().compress(text);
  for (const std::size_t kept : {std::size_t{0}, std::size_t{1}, stored.size() / 2, stored.size() - 1}) {
    const Opened file = open(stored.substr(0, kept), 100'000, GetParam().codec);
    EXPECT_EQ(error_of([&] { read(*file.view, 0, 100'000); }).code(), ErrorCode::kCorruption) << kept;
    EXPECT_EQ(error_of([&] { read(*file.view, 99'999, 1); }).code(), ErrorCode::kCorruption) << kept;
  }
}

TEST_P(Decompress, BytesBehindTheStreamAreCorruption) {
  const std::string text = sample(1000);
  const Opened file = open(GetParam().compress(text) + "more", 1000, GetParam().codec);
  EXPECT_EQ(error_of([&] { read(*file.view, 0, 1000); }).code(), ErrorCode::kCorruption);
}

TEST_P(Decompress, OtherBytesAreCorruption) {
  const Opened file = open("this is no compressed stream", 1000, GetParam().codec);
  EXPECT_EQ(error_of([&] { read(*file.view, 0, 1000); }).code(), ErrorCode::kCorruption);
}

INSTANTIATE_TEST_SUITE_P(Codecs, Decompress,
                         ::testing::Values(Case{"deflate", Codec::kDeflate, &deflated},
                                           Case{"zlib", Codec::kZlib, &with_adler}, Case{"zstd", Codec::kZstd, &zstd}),
                         [](const auto& each) { return each.param.name; });

std::string all_of(const std::string& stored, Codec codec) {
  std::string all;
  const auto file = std::make_shared<BytesFile>("<" + stored + ">");
  decompress_all(
      {file, 1, static_cast<std::int64_t>(stored.size()), 0, codec, "data/0"},
      [&](std::span<const std::byte> block) { all.append(reinterpret_cast<const char*>(block.data()), block.size()); });
  return all;
}

TEST(DecompressAll, GivesEveryFrameWithoutBeingToldItsSize) {
  const std::string text = sample(700'001);
  EXPECT_EQ(all_of(zstd(text) + zstd("more"), Codec::kZstd), text + "more");
  EXPECT_EQ(all_of(deflated(text), Codec::kDeflate), text);
}

TEST(DecompressAll, ACutStreamIsTruncated) {
  const std::string text = sample(700'001);
  for (const auto& each : {std::pair(zstd(text), Codec::kZstd), std::pair(deflated(text), Codec::kDeflate),
                           std::pair(with_adler(text), Codec::kZlib)}) {
    const std::string stored = each.first.substr(0, each.first.size() - 1);
    EXPECT_EQ(error_of([&] { all_of(stored, each.second); }).kind(), FindingKind::kTruncated)
        << static_cast<int>(each.second);
  }
}

TEST(DecompressAll, OtherBytesAreNoDeflateStream) {
  const Error error = error_of([&] { all_of("this is no compressed stream", Codec::kDeflate); });
  EXPECT_EQ(error.kind(), FindingKind::kBadHeader);
  EXPECT_THAT(error.what(), HasSubstr("is not a deflate stream"));
}

TEST(DecompressZstd, FramesFollowOneAnother) {
  const std::string a = sample(700'000), b = sample(900'000);
  const Opened file = open(zstd(a) + zstd("") + zstd(b), 1'600'000, Codec::kZstd);
  EXPECT_EQ(read(*file.view, 0, 1'600'000), a + b);
}

TEST_P(Decompress, KeepsNoDecoderBehindTheEnd) {
  const std::string text = sample(3'000'000);
  const Opened file = opened(text);
  read(*file.view, 0, 100);
  const std::int64_t window = 256 << 10;
  EXPECT_GT(file.view->held_bytes(), window) << "a block of output and the decoder";
  read(*file.view, 0, text.size());
  EXPECT_LE(file.view->held_bytes(), 8 << 20);
  EXPECT_EQ(read(*file.view, 5, 100), text.substr(5, 100));
}

/// A view with its content.
class Holding final : public RandomReader {
 public:
  explicit Holding(std::int64_t held) : bytes(held) {}
  void read_at(std::int64_t, std::span<std::byte>) const override {}
  std::int64_t size() const override { return 0; }
  std::int64_t held_bytes() const override { return bytes; }

  std::int64_t bytes;
};

TEST(DecompressZlib, ComparesTheAdler32) {
  const std::string text = sample(1000);
  std::string stored = with_adler(text);
  stored.back() = static_cast<char>(stored.back() ^ 1);
  const Opened file = open(stored, 1000, Codec::kZlib);
  EXPECT_EQ(error_of([&] { read(*file.view, 0, 1000); }).code(), ErrorCode::kCorruption);
}

std::vector<std::shared_ptr<const RandomReader>> views_at(const std::string& stored, std::int64_t bytes,
                                                          std::span<const std::int64_t> begins) {
  const auto file = std::make_shared<BytesFile>(stored);
  return decompressed_at({file, 0, static_cast<std::int64_t>(stored.size()), bytes, Codec::kZlib, "data/0"}, begins);
}

TEST(DecompressedAt, ViewsGoForwardFromTheirPlaces) {
  const std::string text = sample(4'000'001), stored = with_adler(text);
  const std::vector<std::int64_t> begins{0, 1, 1'000'000, 3'999'999};
  const auto views = views_at(stored, 4'000'001, begins);
  ASSERT_EQ(views.size(), begins.size());
  for (std::int64_t step = 0; step < 1'000'000; step += 10'000) {
    for (std::size_t i = 0; i + 1 < views.size(); ++i) {
      const auto at = static_cast<std::size_t>(begins[i] + step);
      ASSERT_EQ(read(*views[i], begins[i] + step, 10'000), text.substr(at, 10'000)) << i << " " << step;
    }
  }
  EXPECT_EQ(read(*views.back(), 3'999'999, 2), text.substr(3'999'999));
  EXPECT_EQ(read(*views.back(), 3'000'000, 1000), text.substr(3'000'000, 1000)) << "before its place";
  for (const auto& view : views) EXPECT_LT(view->held_bytes(), 4 << 20);
}

TEST(DecompressedAt, OnePassFindsWhatIsWrong) {
  const std::string text = sample(1000), stored = with_adler(text);
  const std::vector<std::int64_t> begins{0, 500};
  const auto code = [&](const std::string& changed, std::int64_t bytes) {
    return error_of([&] { views_at(changed, bytes, begins); }).code();
  };
  EXPECT_EQ(code(stored, 999), ErrorCode::kCorruption);
  EXPECT_EQ(code(stored, 1001), ErrorCode::kCorruption);
  EXPECT_EQ(code(stored + "x", 1000), ErrorCode::kCorruption);
  EXPECT_EQ(code(stored.substr(0, 100), 1000), ErrorCode::kCorruption);
  EXPECT_EQ(code(stored.substr(0, stored.size() - 1) + '\0', 1000), ErrorCode::kCorruption);
}

TEST(ViewCache, KeepsThousandsOfSmallViews) {
  ViewCache cache;
  int made = 0;
  for (int i = 0; i < 6000; ++i) {
    cache.get(static_cast<std::uint32_t>(i % 3000), [&] { return ++made, std::make_shared<Holding>(1000); });
  }
  EXPECT_EQ(made, 3000);
}

TEST(ViewCache, CountsViewsThatGrow) {
  ViewCache cache;
  std::vector<std::weak_ptr<const RandomReader>> made;
  for (std::uint32_t i = 0; i < 100; ++i) {
    const auto growing = std::make_shared<Holding>(0);
    made.push_back(growing);
    cache.get(i, [&] { return growing; });
    growing->bytes = 1 << 20;
  }
  const auto kept = std::ranges::count_if(made, [](const auto& each) { return !each.expired(); });
  EXPECT_THAT(kept, ::testing::AllOf(::testing::Gt(25), ::testing::Lt(40)));
}

TEST(ViewCache, KeepsNothingThatCouldNotBeMade) {
  ViewCache cache;
  const auto fail = []() -> std::shared_ptr<const RandomReader> { throw std::runtime_error("no"); };
  EXPECT_THROW(cache.get(0, fail), std::runtime_error);
  EXPECT_NE(cache.get(0, [] { return std::make_shared<Holding>(1); }), nullptr);
}

TEST(ViewCache, KeepsWhatWasAskedForLastWithinItsMemory) {
  ViewCache cache;
  int made = 0;
  const auto get = [&](std::uint32_t storage, std::int64_t bytes) {
    return cache.get(storage, [&] { return ++made, std::make_shared<Holding>(bytes); });
  };
  for (const std::uint32_t storage : {0U, 1U, 2U, 0U}) get(storage, 10 << 20);
  EXPECT_EQ(made, 3);
  get(3, 10 << 20);  // Leaves no room for 1.
  get(0, 10 << 20), get(2, 10 << 20);
  EXPECT_EQ(made, 4);
  get(1, 10 << 20);
  EXPECT_EQ(made, 5);
  get(9, 128 << 20), get(9, 128 << 20);
  EXPECT_EQ(made, 6) << "the last is kept however large it is";
  get(0, 1);
  EXPECT_EQ(made, 7);
}

TEST(DecompressDeflate, BackwardReadsBeginAtAPointNearby) {
  const std::string text = sample(24'000'000), stored = deflated(text);
  const Opened file = open(stored, 24'000'000, Codec::kDeflate);
  read(*file.view, 23'999'000, 1);
  const int whole = file.file->reads();
  EXPECT_EQ(read(*file.view, 6'000'000, 10), text.substr(6'000'000, 10));
  EXPECT_LT(file.file->reads() - whole, whole / 5);  // The number of bytes needed from the start.
}

/// The output of zlib for raw deflate bytes; nothing if they are damaged or more bytes follow.
std::string inflated(const std::string& stored, std::size_t most) {
  z_stream stream{};
  EXPECT_EQ(inflateInit2(&stream, -MAX_WBITS), Z_OK);
  std::string out(most, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(stored.data()));
  stream.avail_in = static_cast<uInt>(stored.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  const bool is_whole = inflate(&stream, Z_FINISH) == Z_STREAM_END && stream.avail_in == 0;
  out.resize(is_whole ? stream.total_out : 0);
  inflateEnd(&stream);
  return out;
}

/// Every kind of block: stored, of fixed codes, of dynamic codes; empty ones (flushes), far and near matches.
std::string deflated_at_random(const std::string& text, std::mt19937& random) {
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  z_stream stream{};
  EXPECT_EQ(deflateInit2(&stream, below(10), Z_DEFLATED, -9 - below(7), 1 + below(9), below(5)), Z_OK);
  std::string out(2 * text.size() + 1000, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  for (const int flush : {Z_SYNC_FLUSH, Z_FULL_FLUSH, Z_NO_FLUSH}) {
    stream.avail_in = static_cast<uInt>(text.size() / 4);
    deflate(&stream, flush);
  }
  stream.avail_in = static_cast<uInt>(text.size() - 3 * (text.size() / 4));
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

std::string text_at_random(std::mt19937& random) {
  std::string text(random() % 3 == 0 ? 300'000 : random() % 3000, '\0');
  const std::size_t period = 1 + random() % 40'000;
  const unsigned values = 1U << random() % 9;
  for (std::size_t i = 0; i < text.size(); ++i) {
    text[i] = i >= period && random() % 50 != 0 ? text[i - period] : static_cast<char>(random() % values);
  }
  return text;
}

TEST(DecompressDeflate, EveryKindOfBlockGivesItsContent) {
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    const std::string text = text_at_random(random), stored = deflated_at_random(text, random);
    const Opened file = open(stored, static_cast<std::int64_t>(text.size()), Codec::kDeflate);
    ASSERT_TRUE(text.empty() || read(*file.view, 0, text.size()) == text) << "round " << round;
  }
}

/// The decoder accepts a few damaged streams that zlib refuses; the record's CRC-32 detects them.
TEST(DecompressDeflate, DamagedBytesGiveWhatZlibMakesOfThemOrAnError) {
  std::mt19937 random(4);
  int accepted = 0, refused = 0, tolerated = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string stored = deflated_at_random(text_at_random(random).substr(0, 3000), random);
    for (int changes = 1 + static_cast<int>(random() % 3); changes > 0; --changes) {
      const std::size_t at = random() % (random() % 2 == 0 ? stored.size() : std::min<std::size_t>(stored.size(), 100));
      stored[at] = static_cast<char>(stored[at] ^ 1 << random() % 8);
    }
    const std::string wanted = inflated(stored, 200'000);
    std::string found;
    try {
      found = all_of(stored, Codec::kDeflate);
    } catch (const Error& error) {
      ASSERT_TRUE(wanted.empty()) << "round " << round << ": " << error.what();
      ++refused;
      continue;
    }
    if (wanted.empty()) {
      ++tolerated;
    } else {
      ASSERT_EQ(found, wanted) << "round " << round;
      ++accepted;
    }
  }
  EXPECT_GT(accepted, 300);
  EXPECT_GT(refused, 300);
  EXPECT_LT(tolerated, 30);
}

std::string element_view(const std::string& bytes, const ElementCode& code) {
  const auto view =
      as_elements(std::make_shared<BytesFile>("<<<" + bytes), 3, static_cast<std::int64_t>(bytes.size()), code);
  return read(*view, 0, bytes.size());
}

TEST(Elements, BytesAreReversedInGroups) {
  EXPECT_EQ(element_view("abcdefgh", {.swap_bytes = 2}), "badcfehg");
  EXPECT_EQ(element_view("abcdefgh", {.swap_bytes = 4}), "dcbahgfe");
  EXPECT_EQ(element_view("abcdefgh", {.swap_bytes = 8}), "hgfedcba");
}

TEST(Elements, ReadsMayBeginAndEndInsideAnElement) {
  const auto view = as_elements(std::make_shared<BytesFile>("abcdefghijkl"), 0, 12, {.swap_bytes = 4});
  EXPECT_EQ(read(*view, 1, 10), "cbahgfelkj");
  EXPECT_EQ(read(*view, 5, 2), "gf");
  EXPECT_EQ(read(*view, 2, 0), "");
}

TEST(Elements, BytesThatFillNoElementStay) { EXPECT_EQ(element_view("abcdef", {.swap_bytes = 4}), "dcbaef"); }

template <class T>
std::vector<T> decoded(const std::vector<T>& values, const ElementCode& code) {
  const std::string bytes(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
  const std::string out = element_view(bytes, code);
  std::vector<T> result(values.size());
  std::memcpy(result.data(), out.data(), out.size());
  return result;
}

TEST(Elements, ConjFlipsImaginaryParts) {
  EXPECT_EQ(decoded<float>({1, 2, -3, -4}, {.dtype = DType::kComplex64, .conj = true}),
            (std::vector<float>{1, -2, -3, 4}));
}

TEST(Elements, NegFlipsBothParts) {
  EXPECT_EQ(decoded<double>({1, -2}, {.dtype = DType::kComplex128, .neg = true}), (std::vector<double>{-1, 2}));
}

TEST(Elements, ConjAndNegFlipRealParts) {
  EXPECT_EQ(decoded<float>({1, 2}, {.dtype = DType::kComplex64, .conj = true, .neg = true}),
            (std::vector<float>{-1, 2}));
}

TEST(Elements, NegOfRealNumbersAndIntegers) {
  EXPECT_EQ(decoded<float>({1, -2, 0}, {.dtype = DType::kFloat32, .neg = true}), (std::vector<float>{-1, 2, -0.0F}));
  EXPECT_EQ(decoded<std::int16_t>({1, -300, 0}, {.dtype = DType::kInt16, .neg = true}),
            (std::vector<std::int16_t>{-1, 300, 0}));
}

TEST(Elements, SwappingComesBeforeSigns) {
  EXPECT_EQ(element_view("\x3f\x80\x00\x00"s, {.swap_bytes = 4, .dtype = DType::kFloat32, .neg = true}),
            "\x00\x00\x80\xbf"s);
}

TEST(Elements, DtypesWithoutASignAreRefused) {
  const auto file = std::make_shared<BytesFile>("abcd");
  EXPECT_EQ(error_of([&] { as_elements(file, 0, 4, {.dtype = DType::kBool, .neg = true}); }).code(),
            ErrorCode::kUnsupported);
  EXPECT_EQ(error_of([&] { as_elements(file, 0, 4, {.dtype = DType::kFloat32, .conj = true}); }).code(),
            ErrorCode::kUnsupported);
}

}  // namespace
}  // namespace shard::decoded_view
