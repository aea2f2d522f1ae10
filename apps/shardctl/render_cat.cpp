#include "apps/shardctl/render_cat.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "apps/shardctl/element_text.h"
#include "apps/shardctl/json_writer.h"
#include "apps/shardctl/text_sink.h"

namespace shard::app {
namespace {

/// Calls `each` with one block of elements after another, until a reader of the pipe has seen enough.
template <class Each>
void for_each_block(const Session& session, BlockReader& elements, const Each& each) {
  const std::int64_t step = elements.block_elements(kBlockBytes);
  for (std::int64_t begin = 0; begin < elements.elements() && session.out.good(); begin += step) {
    each(elements.read(begin, std::min(begin + step, elements.elements())));
  }
}

/// Magic, version, length and a Python dict, padded so that the data begins at a multiple of 64.
std::string npy_header(DType dtype, const std::vector<std::int64_t>& shape) {
  constexpr std::size_t kLead = 10;
  std::string dict = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}{}), }}", dtype_row(dtype).numpy,
                                 fmt::join(shape, ", "), shape.size() == 1 ? "," : "");
  dict.append(63 - (kLead + dict.size()) % 64, ' ');
  dict += '\n';
  std::string header = "\x93NUMPY\x01";
  header += '\0';
  header += static_cast<char>(dict.size() & 0xFF);
  header += static_cast<char>(dict.size() >> 8);
  return header + dict;
}

/// Groups elements into lines, and lines into matrices.
class TextLayout {
 public:
  TextLayout(TextSink& sink, const std::vector<std::int64_t>& shape, std::size_t width)
      : sink_(sink), shape_(shape), width_(width) {
    if (shape.size() >= 2) columns_ = shape.back(), rows_ = shape[shape.size() - 2];
  }

  void add(std::string_view text) {
    if (shape_.size() > 2 && element_ % (rows_ * columns_) == 0) head();
    if (element_ % columns_ != 0) sink_.spaces(1);
    sink_.spaces(width_ - std::min(width_, text.size()));
    sink_.add(text);
    if (++element_ % columns_ == 0) sink_.end_line();
  }

 private:
  /// "# [0, 3, :, :]"
  void head() {
    std::vector<std::int64_t> index(shape_.size() - 2);
    std::int64_t matrix = element_ / (rows_ * columns_);
    for (std::size_t d = index.size(); d-- > 0;) {
      index[d] = matrix % shape_[d];
      matrix /= shape_[d];
    }
    if (element_ > 0) sink_.end_line();
    sink_.line(fmt::format("# [{}, :, :]", fmt::join(index, ", ")));
  }

  TextSink& sink_;
  const std::vector<std::int64_t>& shape_;
  const std::size_t width_;
  std::int64_t columns_ = 1, rows_ = 1, element_ = 0;
};

/// The width of the columns where they are aligned: on a terminal, and when the first block holds everything.
std::size_t aligned_width(const Session& session, const Printed& tensor, ElementText& text, std::int64_t in_block) {
  if (!session.out_is_terminal || tensor.shape.size() < 2 || in_block != tensor.elements.elements()) return 0;
  std::size_t width = 0;
  for (std::int64_t i = 0; i < in_block; ++i) width = std::max(width, text[i].size());
  return width;
}

}  // namespace

bool fits_npy(DType dtype) { return !dtype_row(dtype).numpy.empty(); }

void cat_raw(const Session& session, const Printed& tensor) {
  for_each_block(session, tensor.elements, [&](std::span<const std::byte> block) {
    session.out.write(reinterpret_cast<const char*>(block.data()), static_cast<std::streamsize>(block.size()));
  });
}

void cat_npy(const Session& session, const Printed& tensor) {
  session.out << npy_header(tensor.dtype, tensor.shape);
  cat_raw(session, tensor);
}

void cat_text(const Session& session, const Printed& tensor) {
  TextSink sink(session.out);
  ElementText text(tensor.dtype, Spelling::kPython);
  std::optional<TextLayout> layout;
  for_each_block(session, tensor.elements, [&](std::span<const std::byte> block) {
    text.take(block);
    if (!layout) layout.emplace(sink, tensor.shape, aligned_width(session, tensor, text, text.size()));
    for (std::int64_t i = 0; i < text.size(); ++i) layout->add(text[i]);
  });
}

void cat_json(const Session& session, const Printed& tensor) {
  JsonWriter json(session.out);
  ElementText text(tensor.dtype, Spelling::kJson);
  json.begin_object();
  json.key("schema"), json.string("shardctl.cat/1");
  json.key("name"), json.string(tensor.name);
  json.key("type"), json.string("torch.Tensor");
  json.key("dtype"), json.string(dtype_name(tensor.dtype));
  json.key("shape"), json.numbers(tensor.shape);
  json.key("values"), json.begin_array();
  for_each_block(session, tensor.elements, [&](std::span<const std::byte> block) {
    text.take(block);
    for (std::int64_t i = 0; i < text.size(); ++i) json.literal(text[i]);
  });
  json.end_array();
  json.end_object();
  json.end_line();
}

}  // namespace shard::app
