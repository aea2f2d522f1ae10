#include "formats/hdf5/parser/file_driver.h"

#include <cstring>
#include <limits>
#include <string_view>

namespace shard::hdf5 {

namespace {

/// Absolute, so that libhdf5 does not ask for the working directory.
constexpr const char* kName = "/the file";
constexpr haddr_t kMostAddress = std::numeric_limits<std::int64_t>::max();

Channel* the_channel = nullptr;  ///< A driver's open() gets no argument of ours.

struct OpenFile {
  H5FD_t base;  ///< libhdf5's part, which must be the first.
  haddr_t end_of_addresses;
};

H5FD_t* open_driver(const char* name, unsigned flags, hid_t, haddr_t) {
  if (std::string_view(name) != kName || (flags & (H5F_ACC_RDWR | H5F_ACC_CREAT)) != 0) return nullptr;
  return &(new OpenFile{})->base;
}
herr_t close_driver(H5FD_t* file) {
  delete reinterpret_cast<OpenFile*>(file);
  return 0;
}
herr_t query(const H5FD_t*, unsigned long* flags) {
  *flags = 0;
  return 0;
}
haddr_t end_of_addresses(const H5FD_t* file, H5FD_mem_t) {
  return reinterpret_cast<const OpenFile*>(file)->end_of_addresses;
}
herr_t set_end_of_addresses(H5FD_t* file, H5FD_mem_t, haddr_t address) {
  reinterpret_cast<OpenFile*>(file)->end_of_addresses = address;
  return 0;
}
haddr_t end_of_file(const H5FD_t*, H5FD_mem_t) { return static_cast<haddr_t>(the_channel->file_bytes()); }

herr_t read_bytes(H5FD_t*, H5FD_mem_t, hid_t, haddr_t address, size_t bytes, void* out) {
  if (address > kMostAddress || bytes > kMostAddress - address) return -1;
  the_channel->read(address, {static_cast<std::byte*>(out), bytes});
  return 0;
}
herr_t refuse_write(H5FD_t*, H5FD_mem_t, hid_t, haddr_t, size_t, const void*) { return -1; }

H5FD_class_t driver() {
  H5FD_class_t driver{};
  driver.name = "shardctl";
  driver.maxaddr = kMostAddress;
  driver.fc_degree = H5F_CLOSE_WEAK;
  driver.open = open_driver;
  driver.close = close_driver;
  driver.query = query;
  driver.get_eoa = end_of_addresses;
  driver.set_eoa = set_end_of_addresses;
  driver.get_eof = end_of_file;
  driver.read = read_bytes;
  driver.write = refuse_write;
  const H5FD_mem_t all_alike[] = H5FD_FLMAP_SINGLE;
  std::memcpy(driver.fl_map, all_alike, sizeof all_alike);
  return driver;
}

}  // namespace

FileHandle open_file(Channel& channel) {
  the_channel = &channel;
  static const H5FD_class_t the_driver = driver();
  const hid_t id = checked(H5FDregister(&the_driver));
  const PropertiesHandle access(H5Pcreate(H5P_FILE_ACCESS));
  checked(H5Pset_driver(access.get(), id, nullptr));
  checked(H5Pset_cache(access.get(), 0, 0, 0, 0));  // No cache of chunks: their contents are not read here.
  return FileHandle(H5Fopen(kName, H5F_ACC_RDONLY, access.get()));
}

}  // namespace shard::hdf5
