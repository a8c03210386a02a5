#include "kernels/cuda/libraries/library.h"

#include <dlfcn.h>

namespace oar::cuda {

void* open_library(std::initializer_list<const char*> names, std::string* why) {
  for (const char* name : names) {
    if (void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE)) return library;
    const char* error = dlerror();
    *why = error != nullptr ? error : name;
  }
  return nullptr;
}

void* find_symbol(void* library, const char* name, std::string* why) {
  void* symbol = dlsym(library, name);
  if (symbol == nullptr) *why = std::string("the library lacks ") + name;
  return symbol;
}

}  // namespace oar::cuda
