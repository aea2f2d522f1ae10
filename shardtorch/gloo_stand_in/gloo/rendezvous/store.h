#pragma once
// The torch wheel contains c10d/ProcessGroupGloo.hpp but no Gloo headers. These few declarations let the compiler parse
// that header. Our code only passes pointers. Gloo itself is inside libtorch_cpu. Code here must not create or call
// anything in gloo::.

#include <chrono>
#include <string>
#include <vector>

namespace gloo::rendezvous {

class Store {
 public:
  virtual ~Store();
  virtual void set(const std::string& key, const std::vector<char>& data) = 0;
  virtual std::vector<char> get(const std::string& key) = 0;
  virtual void wait(const std::vector<std::string>& keys) = 0;
  virtual void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) = 0;
};

}  // namespace gloo::rendezvous
