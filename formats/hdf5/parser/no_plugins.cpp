// Replaces the functions of the dynamic loader that libhdf5.a calls, so that this program can never open a library.
#include <dlfcn.h>

extern "C" {
void* dlopen(const char*, int) noexcept { return nullptr; }
void* dlsym(void*, const char*) noexcept { return nullptr; }
int dlclose(void*) noexcept { return 0; }
char* dlerror() noexcept {
  static char text[] = "this program opens no libraries";
  return text;
}
}
