// NVIDIA's libraries are opened at run time and need not be there: without them our own kernels run.
#pragma once

#include <initializer_list>
#include <string>

namespace oar::cuda {

// What a library said. 0 is success; else `what` names the call and the library's status.
struct LibraryStatus {
  int code = 0;
  std::string what;
  bool ok() const { return code == 0; }
};

// Opens the first of `names` that there is, for as long as the process lives. Null: none; *why says it in the
// linker's words. Any thread.
void* open_library(std::initializer_list<const char*> names, std::string* why);

void* find_symbol(void* library, const char* name, std::string* why);
// False: the library is older than this function; *why names it.
template <class Function>
bool find_function(void* library, const char* name, Function** function, std::string* why) {
  *function = reinterpret_cast<Function*>(find_symbol(library, name, why));
  return *function != nullptr;
}

}  // namespace oar::cuda
