#include "formats/hdf5/library/image.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <memory>
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

PropertiesHandle creation_properties() {
  PropertiesHandle properties(H5Pcreate(H5P_FILE_CREATE));
  checked(H5Pset_obj_track_times(properties.get(), false));
  return properties;
}

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
  const PropertiesHandle creation = creation_properties();
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

}  // namespace shard::hdf5
