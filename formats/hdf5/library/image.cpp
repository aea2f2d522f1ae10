#include "formats/hdf5/library/image.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cstring>
#include <limits>
#include <vector>

namespace shard::hdf5 {

/// Assigns offsets, and stores the bytes of metadata in blocks of one size.
class Image::Blocks {
 public:
  explicit Blocks(std::int64_t begin) : begin_(begin), end_(begin) {}

  void place_next(std::int64_t offset) { next_elements_ = offset; }

  haddr_t allocate(H5FD_mem_t type, hsize_t bytes) {
    if (type == H5FD_MEM_SUPER && !has_superblock_ && bytes <= superblock_.size()) {
      has_superblock_ = true;
      return 0;
    }
    if (next_elements_ >= 0 && type == H5FD_MEM_DRAW) {
      return static_cast<haddr_t>(std::exchange(next_elements_, -1));
    }
    const std::int64_t at = end_;
    end_ += static_cast<std::int64_t>(bytes);
    return static_cast<haddr_t>(at);
  }

  /// Only the last piece is returned; libhdf5 keeps others for its next requests.
  void free(haddr_t address, hsize_t bytes) {
    if (address >= static_cast<haddr_t>(begin_) && address + bytes == static_cast<haddr_t>(end_)) {
      end_ = static_cast<std::int64_t>(address);
    }
  }

  /// libhdf5 extends the last piece with this call.
  void set_end(haddr_t end) {
    if (end >= static_cast<haddr_t>(begin_)) end_ = static_cast<std::int64_t>(end);
  }

  haddr_t end() const { return has_superblock_ ? static_cast<haddr_t>(end_) : 0; }

  bool write(haddr_t address, const std::byte* from, std::size_t bytes) {
    return visit(address, bytes, [&](std::byte* at, std::size_t count) {
      std::memcpy(at, from, count);
      from += count;
    });
  }

  bool read(haddr_t address, std::byte* to, std::size_t bytes) {
    return visit(address, bytes, [&](std::byte* at, std::size_t count) {
      std::memcpy(to, at, count);
      to += count;
    });
  }

  std::int64_t file_bytes() const { return end_; }

  void visit_all(const std::function<void(std::int64_t, std::span<const std::byte>)>& each) const {
    each(0, superblock_);
    for (std::int64_t at = begin_; at < end_; at += kBlockBytes) {
      const auto number = static_cast<std::size_t>((at - begin_) / kBlockBytes);
      const auto count = static_cast<std::size_t>(std::min(kBlockBytes, end_ - at));
      if (number < blocks_.size()) each(at, std::span<const std::byte>(*blocks_[number]).first(count));
    }
  }

 private:
  static constexpr std::int64_t kBlockBytes = 1 << 18;
  using Block = std::array<std::byte, kBlockBytes>;

  /// Calls `each` for the memory of an extent, block by block. False for an extent of elements.
  template <class Each>
  bool visit(haddr_t address, std::size_t bytes, Each&& each) {
    if (address + bytes <= superblock_.size()) {
      each(superblock_.data() + address, bytes);
      return true;
    }
    if (address < static_cast<haddr_t>(begin_)) return false;
    for (auto at = static_cast<std::int64_t>(address) - begin_; bytes > 0;) {
      const auto number = static_cast<std::size_t>(at / kBlockBytes),
                 in_block = static_cast<std::size_t>(at % kBlockBytes);
      while (blocks_.size() <= number) blocks_.push_back(std::make_unique<Block>());
      const std::size_t count = std::min(bytes, static_cast<std::size_t>(kBlockBytes) - in_block);
      each(blocks_[number]->data() + in_block, count);
      at += static_cast<std::int64_t>(count);
      bytes -= count;
    }
    return true;
  }

  std::int64_t begin_, end_;  ///< The range of the metadata.
  bool has_superblock_ = false;
  std::int64_t next_elements_ = -1;
  std::array<std::byte, kSuperblockBytes> superblock_{};
  std::vector<std::unique_ptr<Block>> blocks_;
};

/// The functions that libhdf5 calls. None of them may throw.
struct Image::Driver {
  H5FD_t common;  ///< The first member, because libhdf5 fills it.
  Blocks* blocks;

  static Blocks& blocks_of(const H5FD_t* file) { return *reinterpret_cast<const Driver*>(file)->blocks; }

  template <class Call>
  static bool safely(Call&& call) noexcept {
    try {
      return call();
    } catch (...) {
      return false;
    }
  }

  static H5FD_t* open(const char*, unsigned, hid_t access, haddr_t) {
    const auto* blocks = static_cast<Blocks* const*>(H5Pget_driver_info(access));
    auto* driver = new (std::nothrow) Driver{};
    if (driver != nullptr) driver->blocks = *blocks;
    return reinterpret_cast<H5FD_t*>(driver);
  }
  static herr_t close(H5FD_t* file) {
    delete reinterpret_cast<Driver*>(file);
    return 0;
  }
  static int compare(const H5FD_t* a, const H5FD_t* b) {
    const std::less<const Blocks*> less;
    return less(&blocks_of(a), &blocks_of(b)) ? -1 : less(&blocks_of(b), &blocks_of(a)) ? 1 : 0;
  }
  static haddr_t allocate(H5FD_t* file, H5FD_mem_t type, hid_t, hsize_t bytes) {
    return blocks_of(file).allocate(type, bytes);
  }
  static herr_t free(H5FD_t* file, H5FD_mem_t, hid_t, haddr_t address, hsize_t bytes) {
    blocks_of(file).free(address, bytes);
    return 0;
  }
  static haddr_t end(const H5FD_t* file, H5FD_mem_t) { return blocks_of(file).end(); }
  static herr_t set_end(H5FD_t* file, H5FD_mem_t, haddr_t end) {
    blocks_of(file).set_end(end);
    return 0;
  }
  static herr_t read(H5FD_t* file, H5FD_mem_t, hid_t, haddr_t address, size_t bytes, void* to) {
    const bool is_done = safely([&] { return blocks_of(file).read(address, static_cast<std::byte*>(to), bytes); });
    return is_done ? 0 : -1;
  }
  static herr_t write(H5FD_t* file, H5FD_mem_t, hid_t, haddr_t address, size_t bytes, const void* from) {
    const auto* data = static_cast<const std::byte*>(from);
    return safely([&] { return blocks_of(file).write(address, data, bytes); }) ? 0 : -1;
  }

  static hid_t registered() {
    static const H5FD_class_t kClass = [] {
      H5FD_class_t driver{};
      driver.name = "shardctl-image";
      driver.maxaddr = static_cast<haddr_t>(std::numeric_limits<std::int64_t>::max());
      driver.fc_degree = H5F_CLOSE_STRONG;
      driver.fapl_size = sizeof(Blocks*);
      driver.open = open;
      driver.close = close;
      driver.cmp = compare;
      driver.alloc = allocate;
      driver.free = free;
      driver.get_eoa = end;
      driver.set_eoa = set_end;
      driver.get_eof = end;
      driver.read = read;
      driver.write = write;
      // Keeps the free space of elements and metadata apart.
      const H5FD_mem_t map[] = H5FD_FLMAP_DICHOTOMY;
      std::ranges::copy(map, driver.fl_map);
      driver.fl_map[H5FD_MEM_GHEAP] = H5FD_MEM_SUPER;  // The strings of attributes are metadata.
      return driver;
    }();
    static const hid_t id = checked(H5FDregister(&kClass));
    return id;
  }
};

namespace {

/// libhdf5 1.10 crashes if it cannot allocate the memory for opening a file, 2 MiB or more. Allocating it here first
/// throws instead.
void expect_memory_for_file() {
  constexpr std::size_t kBytes = 8 << 20;
  const auto room = std::make_unique_for_overwrite<std::byte[]>(kBytes);
  // A use of the memory, because the compiler may otherwise omit the allocation.
  *static_cast<volatile std::byte*>(room.get()) = std::byte{0};
}

}  // namespace

Image::Image(std::int64_t metadata_begin) : blocks_(std::make_unique<Blocks>(metadata_begin)) {
  const PropertiesHandle creation = without_times(H5P_FILE_CREATE);
  const PropertiesHandle access(H5Pcreate(H5P_FILE_ACCESS));
  checked(H5Pset_libver_bounds(access.get(), H5F_LIBVER_V18, H5F_LIBVER_V110));
  Blocks* const blocks = blocks_.get();
  checked(H5Pset_driver(access.get(), Driver::registered(), &blocks));
  expect_memory_for_file();
  file_ = FileHandle(H5Fcreate("image", H5F_ACC_TRUNC, creation.get(), access.get()));
}

Image::~Image() = default;

void Image::place_next(std::int64_t offset) { blocks_->place_next(offset); }

void Image::close() { checked(H5Fclose(file_.release())); }

std::int64_t Image::bytes() const { return blocks_->file_bytes(); }

void Image::visit(const std::function<void(std::int64_t, std::span<const std::byte>)>& each) const {
  blocks_->visit_all(each);
}

namespace {

TypeHandle copy_of(hid_t type) { return TypeHandle(H5Tcopy(type)); }

void set_order(const TypeHandle& made, const Type& type) {
  checked(H5Tset_order(made.get(), type.big_endian ? H5T_ORDER_BE : H5T_ORDER_LE));
}

/// An integer or a bit field. The significant bits are set if they do not fill the element, which is rare.
TypeHandle make_bits(hid_t widest, const Type& type) {
  TypeHandle made = copy_of(widest);
  checked(H5Tset_size(made.get(), type.bytes));
  if (type.precision != 0) checked(H5Tset_precision(made.get(), type.precision));
  checked(H5Tset_offset(made.get(), type.offset));
  set_order(made, type);
  return made;
}

/// Fields are set while the type is wide enough for them: before the size is reduced, or after it is increased.
TypeHandle make_float(const Type& type) {
  constexpr std::uint32_t kDouble = 8;
  TypeHandle made = copy_of(H5T_IEEE_F64LE);
  const FloatFields& fields = type.fields;
  if (type.bytes > kDouble) {
    checked(H5Tset_size(made.get(), type.bytes));
    checked(H5Tset_precision(made.get(), fields.precision));
  }
  checked(H5Tset_fields(made.get(), fields.sign_at, fields.exponent_at, fields.exponent_bits, fields.mantissa_at,
                        fields.mantissa_bits));
  if (type.bytes <= kDouble) {
    checked(H5Tset_precision(made.get(), fields.precision));
    checked(H5Tset_size(made.get(), type.bytes));
  }
  checked(H5Tset_offset(made.get(), fields.offset));
  checked(H5Tset_ebias(made.get(), fields.bias));
  if (!fields.implied_one) checked(H5Tset_norm(made.get(), H5T_NORM_NONE));
  set_order(made, type);
  return made;
}

/// A number as an element of an enum's base type.
std::array<std::byte, 8> base_element(std::int64_t value, const Type& base) {
  std::array<std::byte, 8> element{};
  std::memcpy(element.data(), &value, sizeof value);
  if (base.big_endian) std::ranges::reverse(std::span(element).first(base.bytes));
  return element;
}

TypeHandle make_enum(const Type& type) {
  assert(!type.inner.empty() && type.bytes <= 8);
  const Type& base = type.inner[0].type;
  TypeHandle made(H5Tenum_create(make_type(base).get()));
  for (const Type::Member& member : std::span(type.inner).subspan(1)) {
    checked(H5Tenum_insert(made.get(), member.name.c_str(), base_element(member.value, base).data()));
  }
  return made;
}

TypeHandle make_array(const Type& type) {
  const std::vector<hsize_t> dims(type.dims.begin(), type.dims.end());
  return TypeHandle(
      H5Tarray_create2(make_type(type.inner.at(0).type).get(), static_cast<unsigned>(dims.size()), dims.data()));
}

TypeHandle make_compound(const Type& type) {
  TypeHandle made(H5Tcreate(H5T_COMPOUND, type.bytes));
  for (const Type::Member& member : type.inner) {
    checked(H5Tinsert(made.get(), member.name.c_str(), member.at, make_type(member.type).get()));
  }
  return made;
}

H5T_str_t padding_of(const Type& type) {
  switch (type.padding) {
    case StringPadding::kNull:
      return H5T_STR_NULLPAD;
    case StringPadding::kSpace:
      return H5T_STR_SPACEPAD;
    case StringPadding::kNullTerminated:
      break;
  }
  return H5T_STR_NULLTERM;
}

TypeHandle make_string(const Type& type) {
  TypeHandle made = copy_of(H5T_C_S1);
  checked(H5Tset_size(made.get(), type.is_variable ? H5T_VARIABLE : type.bytes));
  checked(H5Tset_strpad(made.get(), padding_of(type)));
  checked(H5Tset_cset(made.get(), type.is_utf8 ? H5T_CSET_UTF8 : H5T_CSET_ASCII));
  return made;
}

TypeHandle make_opaque(const Type& type) {
  TypeHandle made(H5Tcreate(H5T_OPAQUE, type.bytes));
  if (!type.tag.empty()) checked(H5Tset_tag(made.get(), type.tag.c_str()));
  return made;
}

/// Calls `write` with the address of all elements in memory.
template <class Write>
void with_elements(const Content& content, Write&& write) {
  if (content.space.kind == SpaceKind::kNull) return;
  if (content.type.kind != TypeClass::kString) return write(static_cast<const void*>(content.data.data()));
  if (content.type.is_variable) {
    const std::vector<std::string> texts(content.strings.begin(), content.strings.end());
    std::vector<const char*> pointers;
    for (const std::string& text : texts) pointers.push_back(text.c_str());
    return write(static_cast<const void*>(pointers.data()));
  }
  std::string all;
  for (const std::string_view text : content.strings) {
    const std::string_view fits = text.substr(0, content.type.bytes);
    all.append(fits).append(content.type.bytes - fits.size(),
                            content.type.padding == StringPadding::kSpace ? ' ' : '\0');
  }
  write(static_cast<const void*>(all.data()));
}

bool has_elements(const Content& content) {
  return content.space.kind != SpaceKind::kNull &&
         std::ranges::find(content.space.shape, 0) == content.space.shape.end();
}

}  // namespace

PropertiesHandle without_times(hid_t kind) {
  PropertiesHandle properties(H5Pcreate(kind));
  checked(H5Pset_obj_track_times(properties.get(), false));
  return properties;
}

PropertiesHandle with_utf8_names(hid_t kind) {
  PropertiesHandle properties(H5Pcreate(kind));
  checked(H5Pset_char_encoding(properties.get(), H5T_CSET_UTF8));
  return properties;
}

TypeHandle make_type(const Type& type) {
  switch (type.kind) {
    case TypeClass::kInteger:
      return make_bits(type.is_signed ? H5T_STD_I64LE : H5T_STD_U64LE, type);
    case TypeClass::kFloat:
      return make_float(type);
    case TypeClass::kEnum:
      return make_enum(type);
    case TypeClass::kBitfield:
      return make_bits(H5T_STD_B64LE, type);
    case TypeClass::kCompound:
      return make_compound(type);
    case TypeClass::kArray:
      return make_array(type);
    case TypeClass::kString:
      return make_string(type);
    case TypeClass::kOpaque:
      return make_opaque(type);
    default:
      throw LibraryError("a datatype that is not written", true);
  }
}

SpaceHandle make_space(const Space& space) {
  if (space.kind == SpaceKind::kNull) return SpaceHandle(H5Screate(H5S_NULL));
  if (space.kind == SpaceKind::kScalar) return SpaceHandle(H5Screate(H5S_SCALAR));
  const std::vector<hsize_t> dims(space.shape.begin(), space.shape.end());
  return SpaceHandle(H5Screate_simple(static_cast<int>(dims.size()), dims.data(), nullptr));
}

void add_attribute(hid_t object, const std::string& name, const Content& content) {
  const PropertiesHandle names = with_utf8_names(H5P_ATTRIBUTE_CREATE);
  const TypeHandle type = make_type(content.type);
  const SpaceHandle space = make_space(content.space);
  const AttributeHandle attribute(H5Acreate2(object, name.c_str(), type.get(), space.get(), names.get(), H5P_DEFAULT));
  if (!has_elements(content)) return;
  with_elements(content, [&](const void* elements) { checked(H5Awrite(attribute.get(), type.get(), elements)); });
}

void write_elements(hid_t dataset, const Content& content) {
  if (!has_elements(content)) return;
  const TypeHandle type = make_type(content.type);
  with_elements(content, [&](const void* elements) {
    checked(H5Dwrite(dataset, type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, elements));
  });
}

}  // namespace shard::hdf5
